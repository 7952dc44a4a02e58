// Theme: light or dark, always light on paper; and how a page starts.

const chosenTheme = () => document.documentElement.dataset.theme;

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}

// Let the button and printing change the theme, and redraw whatever has its own colours.
function followTheme(again) {
  byId("theme").addEventListener("click", () => {
    setTheme(chosenTheme() === "dark" ? "light" : "dark");
    again();
  });
  let before = null;
  addEventListener("beforeprint", () => { before = chosenTheme(); setTheme("light"); again(); });
  addEventListener("afterprint", () => { setTheme(before); again(); });
}

// Show a page: everything that needs no plotly.js at once, and the charts once plotly.js is loaded.
//
// `lay` draws what it can of the data. It returns optional functions to redraw it in another theme (`again`) or size
// (`resized`) and to draw the charts (`charts`), and whatever else tests may inspect.
function start(lay) {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  show(lay).catch((error) => {
    byId("failure").hidden = false;
    byId("failure").textContent = `The page cannot be shown: ${error.message || error}. It needs a browser of 2023 or later.`;
    console.error(error);
  });
}

async function show(lay) {
  const data = await unpackAll(JSON.parse(byId("data").textContent));
  entries = data.entries || [];
  const { again = () => {}, resized = again, charts = null, ...shown } = lay(data);
  let there = false;
  followTheme(() => {
    again();
    if (there) charts();
  });
  addEventListener("resize", resized);
  const report = { data, ...shown, interactive: performance.now() };
  window.pagesimReport = report;
  if (charts !== null) {
    await new Promise((next) => { requestAnimationFrame(() => setTimeout(next)); });
    await runDeflated(byId("plotly"));
    there = true;
    await charts();
  }
  report.drawn = performance.now();
}
