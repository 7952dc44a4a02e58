// Parts: elements, numbers, colours. Every text goes in as text, never as HTML.

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

// The states of a slot, or of bytes where groups of layers share the blocks, each with a colour and a hatching: colours need not be told apart.

const HATCHES = { reserved: "/", unused_reservation: "x", rounding: ".", external: "\\", cached: "|", out_of_window: "-", padding: "+",
  loading: "-", fenced: "x", held_for_transfer: "/", landing: "\\" };

let entries = [];

const colourOf = (entry) => (entry.key === "free" ? style("--free") : entry.colour);

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

// What to fill with, by state, in the present theme.
function fills(context) {
  return entries.map((entry) =>
    entry.key in HATCHES ? hatch(context, HATCHES[entry.key], colourOf(entry)) : colourOf(entry));
}

function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

function drawStack(canvas, shares) {
  const width = canvas.clientWidth || 200, height = canvas.clientHeight || 18;
  const context = prepare(canvas, width, height), fill = fills(context);
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

function drawKey(holder, shown, extra = []) {
  holder.replaceChildren();
  const swatches = entries.map((entry, i) => [entry.label, (pen) => fills(pen)[i], entry.key]);
  for (const [label, fill, key] of swatches) {
    if (!shown.has(key)) continue;
    const canvas = make("canvas");
    const pen = prepare(canvas, 22, 14);
    pen.fillStyle = fill(pen);
    pen.fillRect(0, 0, 22, 14);
    holder.append(make("span", {}, canvas, label));
  }
  for (const [label, draw] of extra) {
    const canvas = make("canvas");
    draw(prepare(canvas, 22, 14));
    holder.append(make("span", {}, canvas, label));
  }
}

// Lines beside the pointer.
function showTip(lines, event) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const y = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${y}px`;
}

// Systems: a colour of Okabe and Ito's and a dash each.

const LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];
const DASHES = ["solid", "7px,4px", "2px,2px", "7px,2px,2px,2px", "14px,3px", "14px,2px,2px,2px"];

const lineOf = (i) => ({ color: LINES[i % LINES.length], dash: DASHES[(i + Math.floor(i / 6)) % 6], width: 1.8 });

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
