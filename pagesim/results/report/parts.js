// Parts: elements, numbers and colours. Texts are always inserted as text, never as HTML.

const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const count = (n) => Number(n).toLocaleString("en-US");

function digits(value, significant = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const places = Math.max(0, significant - 1 - Math.floor(Math.log10(Math.abs(value))));
  return Number(value).toLocaleString("en-US", {
    minimumFractionDigits: Math.min(places, 6), maximumFractionDigits: Math.min(places, 6),
  });
}

function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  return value < 1 ? `${digits(value * 1e3)} ms` : `${digits(value)} s`;
}

const instant = (value) => `${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} s`;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The states of a slot, or of bytes where KV cache groups share the blocks. Each has a colour, a hatching for readers who
// cannot distinguish colours, and the entries of the ledger (keys) that it represents.

let entries = [];

// The sum of an entry's share of amounts by entry of the ledger.
const amountOf = (entry, amounts) => entry.keys.reduce((sum, key) => sum + (amounts[key] || 0), 0);

const OF_THE_THEME = { free: "--free", "not requested": "--back" };

const colourOf = (entry) => (entry.key in OF_THE_THEME ? style(OF_THE_THEME[entry.key]) : entry.colour);

function hatch(context, shape, colour) {
  const tile = make("canvas", { width: 8, height: 8 });
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = "rgba(255,255,255,.5)";
  pen.lineWidth = 1;
  const line = (x, y, u, v) => { pen.beginPath(); pen.moveTo(x, y); pen.lineTo(u, v); pen.stroke(); };
  if (shape === "/" || shape === "x") for (const d of [-4, 0, 4]) line(d - 2, 10, d + 10, -2);
  if (shape === "\\" || shape === "x") for (const d of [-4, 0, 4]) line(d - 2, -2, d + 10, 10);
  if (shape === "|" || shape === "+") for (const x of [2, 6]) line(x, 0, x, 8);
  if (shape === "-" || shape === "+") for (const y of [2, 6]) line(0, y, 8, y);
  if (shape === ".") for (const [x, y] of [[2, 2], [6, 6]]) pen.fillRect(x - 1, y - 1, 2, 2);
  return context.createPattern(tile, "repeat");
}

// The fill of a part in the current theme.
const fillOf = (context, part) => (part.hatch ? hatch(context, part.hatch, colourOf(part)) : colourOf(part));

const fills = (context) => entries.map((entry) => fillOf(context, entry));

// The same for plotly.js, for areas and bars.
const patternOf = (part) => ({ shape: part.hatch, bgcolor: colourOf(part), fgcolor: "rgba(255,255,255,.45)", size: 7, solidity: 0.2 });

const areaLook = (part) => ({ line: { width: 0, shape: "hv" }, fillcolor: colourOf(part), fillpattern: patternOf(part) });

const barLook = (part) => ({ marker: { color: colourOf(part), line: { width: 0 }, pattern: patternOf(part) } });

function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

function drawStack(canvas, shares, hatched = true) {
  const width = canvas.clientWidth || 200, height = canvas.clientHeight || 18;
  const context = prepare(canvas, width, height), fill = hatched ? fills(context) : entries.map(colourOf);
  const total = shares.reduce((sum, share) => sum + share, 0) || 1;
  let x = 0;
  shares.forEach((share, i) => {
    const w = (share / total) * width;
    context.fillStyle = fill[i];
    context.fillRect(x, 0, w, height);
    if (x > 0 && w > 0) {
      context.fillStyle = style("--back");
      context.fillRect(x - 0.5, 0, 1, height);
    }
    x += w;
  });
}

// Draw a legend: the parts shown, then further entries of a label and a function that draws the swatch; hatched like the chart.
function drawKey(holder, shown, extra = [], hatched = true) {
  const fill = (part) => (pen) => {
    pen.fillStyle = hatched ? fillOf(pen, part) : colourOf(part);
    pen.fillRect(0, 0, 22, 14);
  };
  holder.replaceChildren(...[...shown.map((part) => [part.label, fill(part)]), ...extra].map(([label, draw]) => {
    const canvas = make("canvas");
    draw(prepare(canvas, 22, 14));
    return make("span", {}, canvas, label);
  }));
}

// A box with lines of text next to the pointer.
function showTip(lines, event) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${y}px`;
}

// A colour and a dash for each system.

const DASHES = ["solid", "7px,4px", "2px,2px", "7px,2px,2px,2px", "14px,3px", "14px,2px,2px,2px"];

const lineOf = (i) => ({ color: STYLE.lines[i % STYLE.lines.length], dash: DASHES[(i + Math.floor(i / 6)) % 6], width: 1.8 });

function lineMark(i) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg"), line = document.createElementNS(ns, "line");
  for (const [k, v] of Object.entries({ width: 26, height: 10, class: "line-mark", "aria-hidden": "true" })) {
    svg.setAttribute(k, v);
  }
  const look = { x1: 0, x2: 26, y1: 5, y2: 5, stroke: lineOf(i).color, "stroke-width": 3 };
  for (const [k, v] of Object.entries(look)) line.setAttribute(k, v);
  if (lineOf(i).dash !== "solid") line.setAttribute("stroke-dasharray", lineOf(i).dash.replace(/px/g, ""));
  svg.append(line);
  return svg;
}
