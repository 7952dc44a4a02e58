// Main: results side by side, with a memory map and charts that follow it.

start((data) => {
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
    // During playback the charts are updated less often.
    if (charts === null || (playing && performance.now() - marked < 300)) return;
    marked = performance.now();
    charts.mark(at);
  });
  const now = map.systems.length ? data.instants[map.slot] : null;
  const fall = new Waterfall(data);
  fall.around(now === null ? data.end / 2 : now);
  const resized = () => {
    bars();
    map.draw();
    tree.draw();
  };
  return {
    map,
    tree,
    resized,
    again: () => {
      resized();
      if (map.systems.length) map.drawKey();
    },
    charts: async () => {
      if (charts === null) {
        charts = new Charts(data, (at) => { map.seekTime(at); tree.seekTime(at); });
        charts.now = map.systems.length ? data.instants[map.slot] : null;
      }
      fall.draw();
      await charts.draw();
    },
  };
});
