// Charts over time and of distributions, drawn by plotly.js.

// plotly.js interprets some tags in texts, so names must be escaped.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const SETTINGS = {
  displayModeBar: false, displaylogo: false, responsive: true, doubleClick: "reset",
};

function layoutOf(extra) {
  const axis = {
    gridcolor: style("--grid"), linecolor: style("--line"), zerolinecolor: style("--line"), tickcolor: style("--line"),
    automargin: true, fixedrange: false,
  };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("--muted") },
    margin: { l: 48, r: 12, t: 8, b: 36 }, showlegend: false, hovermode: "x unified",
    hoverlabel: { bgcolor: style("--back"), bordercolor: style("--line"), font: { color: style("--text") } },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

function place(holder, heading, mark) {
  const chart = make("div", { className: "chart" });
  holder.append(make("div", {}, make("h3", {}, ...(mark ? [mark] : []), heading), chart));
  return chart;
}

// An area of a stacked chart over time, in percent of a total.
const stacked = (clock, amounts, percent, name, look) => ({
  x: Array.from(clock), y: Array.from(amounts, (amount) => amount * percent), name, type: "scatter", mode: "lines",
  stackgroup: "parts", hovertemplate: "%{y:.1f} %", ...look,
});

const COUNTS = { num_running: "Running requests", num_waiting: "Waiting requests", num_swapped: "Swapped-out requests" };

const systemKey = (holder, systems) => systems.forEach((system, i) => holder.append(make("span", {}, lineMark(i), system.name)));

class Charts {
  constructor(data, onClick) {
    this.data = data;
    this.onClick = onClick;
    this.timed = new Set(); // charts over time, which mark the map's instant
    this.now = null;
    this.drawers = [];
    this.layOut();
  }

  layOut() {
    const { systems } = this.data;
    const kept = systems.filter((system) => system.over_time);
    const shown = entries.filter(({ key }) =>
      key === "free" || kept.some((system) => (system.over_time[key] || []).some((amount) => amount)));
    this.drawers.push(() => drawKey(byId("ledger-key"), shown));
    systems.forEach((system, i) => {
      if (!system.over_time) {
        byId("ledgers").append(make("p", { className: "notice" }, `${system.name}: no steps were kept with the result.`));
        return;
      }
      const chart = place(byId("ledgers"), system.name, lineMark(i));
      this.drawers.push(() => this.ledger(chart, system, shown));
    });
    for (const system of kept.filter(({ over_time: t }) => t.groups.length)) {
      const byGroup = place(byId("group-charts"), system.name);
      this.drawers.push(() => this.groups(byGroup, system));
    }
    this.drawers.push(...layOutTiers(this));
    const parts = kept.filter(({ over_time: t }) => t.points < t.rows).map(({ name, over_time: t }) =>
      `${name}: ${count(t.points)} of ${count(t.rows)} stretches of ${count(t.iterations)} iterations`);
    byId("ledger-left-out").textContent = parts.length
      ? `Shown at evenly spaced instants; what happens in between is left out. ${parts.join("; ")}.` : "";
    const swapped = kept.some((system) => system.over_time.num_swapped.some((n) => n));
    this.layOutLines(Object.keys(COUNTS).filter((key) => key !== "num_swapped" || swapped));
  }

  // Lay out charts of request counts over time and of latency distributions, with one line per system.
  layOutLines(counts) {
    for (const id of ["load-key", "latency-key"]) systemKey(byId(id), this.data.systems);
    for (const key of counts) {
      const chart = place(byId("loads"), COUNTS[key]);
      this.drawers.push(() => this.lines(chart, key));
    }
    for (const [key, title, what] of LATENCIES) {
      const chart = place(byId("latencies"), title);
      chart.parentElement.insertBefore(make("p", { className: "muted small" }, what), chart);
      this.drawers.push(() => this.distribution(chart, key));
    }
  }

  // Draw one chart after another, so that the page stays responsive.
  async draw() {
    this.timed.clear();
    for (const drawer of this.drawers) {
      drawer();
      await new Promise((next) => { setTimeout(next); });
    }
  }

  ledger(chart, system, shown) {
    const t = system.over_time, { memory } = system.summary;
    const percent = 100 / (memory.capacity_bytes || memory.num_blocks * memory.block_size);
    const traces = shown.filter((entry) => t[entry.key]).map((entry) =>
      stacked(t.clock, t[entry.key], percent, entry.label.split(" (")[0], areaLook(entry)));
    this.timeChart(chart, traces, { title: "% of the cache", range: [0, 100] });
  }

  groups(chart, system) {
    const t = system.over_time, percent = 100 / system.summary.memory.num_blocks;
    const traces = t.groups.map(({ name, blocks }, i) => stacked(t.clock, blocks, percent, groupName(name),
      { line: { width: 0, shape: "hv" }, fillcolor: REQUEST_COLOURS[i % REQUEST_COLOURS.length] }));
    this.timeChart(chart, traces, { title: "% of the blocks", range: [0, 100], showlegend: true });
  }

  lines(chart, key) {
    const traces = this.data.systems.flatMap((system, i) => system.over_time ? [{
      x: Array.from(system.over_time.clock), y: Array.from(system.over_time[key]), name: plain(system.name),
      type: "scatter", mode: "lines", line: { ...lineOf(i), shape: "hv" }, hovertemplate: "%{y:,}",
    }] : []);
    this.timeChart(chart, traces, { title: "requests", rangemode: "tozero" });
  }

  timeChart(chart, traces, { title, showlegend = false, ...yaxis }) {
    Plotly.react(chart, traces, layoutOf({
      showlegend,
      xaxis: { title: { text: "time (s)", standoff: 6 }, range: [0, this.data.end], hoverformat: ",.2f" },
      yaxis: { title: { text: title, standoff: 6 }, ...yaxis }, shapes: this.shapes(),
    }), SETTINGS);
    if (!chart.dataset.listens) {
      chart.dataset.listens = "yes";
      chart.on("plotly_click", (event) => this.onClick(event.points[0].x));
    }
    this.timed.add(chart);
  }

  distribution(chart, key) {
    const traces = this.data.systems.flatMap((system, i) => {
      const found = system.distributions[key];
      if (!found) return [];
      const y = Array.from(found.quantiles, (_, k) => 100 * k / (found.quantiles.length - 1));
      // A log axis has no zero.
      const x = Array.from(found.quantiles, (value) => Math.max(value, 1e-4));
      return [{ x, y, name: plain(system.name), type: "scatter", mode: "lines", line: lineOf(i), hovertemplate: "%{x:.3g} s: %{y:.0f} %" }];
    });
    const ends = traces.flatMap(({ x }) => [x[0], x[x.length - 1]]);
    const decades = Math.log10(Math.max(...ends) / Math.min(...ends));
    Plotly.react(chart, traces, layoutOf({
      hovermode: "closest",
      xaxis: {
        // Below half a decade a log axis has hardly any round number to label.
        type: decades < 0.5 ? "linear" : "log", nticks: 5, title: { text: key === "normalized_latency" ? "s per output token" : "s", standoff: 6 },
        dtick: decades > 4.5 ? 2 : decades > 1.5 ? 1 : decades < 0.5 ? null : "D2", tickformat: "~g", tickangle: 0,
      },
      yaxis: { title: { text: "% of samples", standoff: 6 }, range: [0, 101] },
    }), SETTINGS);
  }

  shapes() {
    if (this.now === null) return [];
    const line = { color: style("--text"), width: 1.4, dash: "dot" };
    return [{ type: "line", x0: this.now, x1: this.now, y0: 0, y1: 1, yref: "paper", line }];
  }

  // Mark the map's instant.
  mark(now) {
    this.now = now;
    for (const chart of this.timed) Plotly.relayout(chart, { shapes: this.shapes() });
  }
}
