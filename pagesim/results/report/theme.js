// Theme: light or dark, and on paper light; and how a page begins.

const chosenTheme = () => document.documentElement.dataset.theme;

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
}

// Let the button, and a printer, change the theme, and draw again what has colours of its own.
function followTheme(again) {
  byId("theme").addEventListener("click", () => {
    setTheme(chosenTheme() === "dark" ? "light" : "dark");
    again();
  });
  let before = null;
  addEventListener("beforeprint", () => { before = chosenTheme(); setTheme("light"); again(); });
  addEventListener("afterprint", () => { setTheme(before); again(); });
}

function start(begin) {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  begin().catch((error) => {
    byId("failure").hidden = false;
    byId("failure").textContent = `The page cannot be shown: ${error.message || error}. It needs a browser of 2023 or later.`;
    console.error(error);
  });
}
