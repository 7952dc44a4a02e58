// Main: reads the data, draws what needs no plotly.js at once and the charts when plotly.js is there.

async function begin() {
  const data = await unpackAll(JSON.parse(byId("data").textContent));
  entries = data.entries;
  const bars = drawHeadline(data);
  drawShares(data);
  drawScenario(data);
  drawGroups(data);
  drawPercentiles(data);
  drawPreemptions(data);
  let charts = null, marked = 0;
  const tree = new TreeView(data);
  const map = new MemoryMap(data, (at, playing) => {
    tree.seekTime(at);
    // While it plays the charts follow at leisure.
    if (charts === null || (playing && performance.now() - marked < 300)) return;
    marked = performance.now();
    charts.mark(at);
  });
  const drawCharts = async () => {
    fall.draw();
    await charts.draw();
  };
  const again = () => {
    bars();
    map.draw();
    tree.draw();
    if (map.systems.length) map.drawKey();
    if (charts !== null) drawCharts();
  };
  followTheme(again);
  addEventListener("resize", () => { bars(); map.draw(); tree.draw(); });
  const report = { data, map, tree, interactive: performance.now() };
  window.pagesimReport = report;
  const fall = new Waterfall(data);
  fall.around(map.systems.length ? data.instants[map.slot] : data.end / 2);
  await new Promise((drawn) => { requestAnimationFrame(() => setTimeout(drawn)); });
  await runDeflated(byId("plotly"));
  charts = new Charts(data, (at) => { map.seekTime(at); tree.seekTime(at); });
  charts.now = map.systems.length ? data.instants[map.slot] : null;
  await drawCharts();
  report.drawn = performance.now();
}

start(begin);
