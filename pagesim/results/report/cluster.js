// Cluster: replicas behind a router, side by side, with the balance of their load and their memory use.

const ROUTED = [
  ["replicas", ({ summary: { cluster } }) => (cluster.prefill
    ? `${count(cluster.prefill.replicas)} + ${count(cluster.decode.replicas)}` : count(cluster.replicas))],
  ["router", ({ summary: { cluster } }) => (cluster.prefill
    ? `${cluster.prefill.router}, ${cluster.decode.router}` : cluster.router)],
  ["imbalance\nof requests", ({ summary: { cluster } }) => poolsOf(cluster).map((pool) => digits(pool.imbalance.requests)).join(", ")],
  ["of the\ntime busy", ({ summary: { cluster } }) => poolsOf(cluster).map((pool) => digits(pool.imbalance.busy_share)).join(", ")],
];

const poolsOf = (cluster) => (cluster.prefill ? [cluster.prefill, cluster.decode] : [cluster]);

// Metrics that a cluster shares with a single run.
const OF_ALL = NUMBERS.filter(([label]) => !label.startsWith("used"));

const COLUMNS = [
  ["requests", "requests", count], ["output_tokens", "output\ntokens", count], ["busy_share", "share of\nthe time busy", digits],
  ["mean_batch", "batch,\nmean", digits], ["most", "not over,\nmost", count], ["used_percent", "used,\n% of cache", digits],
  ["recomputes", "recomputed", count], ["swaps", "swapped\nout", count], ["ttft_p50_s", "TTFT, s,\np50", digits],
  ["ttft_p99_s", "TTFT, s,\np99", digits],
];

function drawCluster(data) {
  table(byId("numbers"), ["cluster", ...[...ROUTED, ...OF_ALL].map(([label]) => label)], data.systems.map((cluster, i) =>
    [named(cluster, i), ...ROUTED.map(([, of]) => of(cluster)), ...OF_ALL.map(([, of]) => of(cluster.summary))]));
  data.systems.forEach((cluster, i) => {
    const holder = make("table");
    table(holder, ["replica", ...COLUMNS.map(([, label]) => label)], cluster.replicas.names.map((name, k) =>
      [name, ...COLUMNS.map(([key, , as]) => as(cluster.replicas[key][k]))]));
    byId("replica-tables").append(make("h3", {}, lineMark(i), cluster.name), make("div", { className: "scroll" }, holder));
  });
  byId("subtitle").textContent = data.systems.map((cluster) =>
    `${cluster.name}: ${count(cluster.summary.requests.total)} requests`).join(" · ");
  byId("headline-note").textContent = "Imbalance: the most of any replica over the mean of its pool. 1 is even.";
  byId("load-note").textContent = "Over all replicas of a cluster: requests that wait for the first of their iterations, and " +
    "those that are past it and not over.";
  byId("load-note").hidden = false;
  document.title = `pagesim report: ${data.systems.map((cluster) => cluster.name).join(", ")}`;
  byId("made").textContent =
    `Made by pagesim ${data.version}. What each number means: docs/clusters.md, docs/metrics.md. This page fetches nothing.`;
}

class ClusterCharts extends Charts {
  layOut() {
    const { systems } = this.data;
    systems.forEach((cluster, i) => {
      const map = place(byId("maps"), cluster.name, lineMark(i));
      this.drawers.push(() => this.loads(map, cluster));
      const bars = place(byId("memories"), `${cluster.name}: each replica`, lineMark(i));
      this.drawers.push(() => this.bars(bars, cluster));
      for (const [pool, over_time] of Object.entries(cluster.pools || {})) {
        const chart = place(byId("memories"), `${cluster.name}: ${pool}`, lineMark(i));
        const system = { over_time, summary: { memory: { capacity_bytes: 100 } } };
        this.drawers.push(() => this.ledger(chart, system, entries));
      }
    });
    const shown = entries.filter(({ key }) =>
      key === "free" || systems.some(({ replicas }) => (replicas[`${key}_percent`] || []).some((share) => share)));
    this.drawers.push(() => drawKey(byId("memory-key"), shown));
    this.layOutLines(["num_running", "num_waiting"]);
  }

  // Unfinished requests of each replica over time.
  loads(chart, cluster) {
    const { clock } = cluster.over_time, { names } = cluster.replicas;
    const z = names.map((_, k) => Array.from(cluster.outstanding.subarray(k * clock.length, (k + 1) * clock.length)));
    const dark = chosenTheme() === "dark";
    chart.style.height = `${Math.max(160, Math.min(640, 90 + 22 * names.length))}px`;
    Plotly.react(chart, [{
      x: Array.from(clock), y: names.map(plain), z, type: "heatmap", colorscale: "Viridis", reversescale: !dark,
      colorbar: { title: { text: "requests" }, thickness: 10 }, hovertemplate: "%{y} at %{x:,.2f} s: %{z:,}<extra></extra>",
    }], layoutOf({
      hovermode: "closest", xaxis: { title: { text: "time (s)", standoff: 6 } },
      yaxis: { type: "category", autorange: "reversed", title: { text: "replica" } },
    }), SETTINGS);
  }

  bars(chart, cluster) {
    const { replicas } = cluster, y = replicas.names.map(plain);
    chart.style.height = `${Math.max(160, Math.min(640, 60 + 22 * y.length))}px`;
    const traces = entries.filter(({ key }) => (replicas[`${key}_percent`] || []).some((share) => share)).map((entry) => ({
      y, x: Array.from(replicas[`${entry.key}_percent`]), name: entry.label.split(" (")[0], type: "bar", orientation: "h",
      ...barLook(entry), hovertemplate: "%{x:.1f} %",
    }));
    Plotly.react(chart, traces, layoutOf({
      barmode: "stack", hovermode: "y unified", bargap: 0.25,
      xaxis: { title: { text: "% of the cache", standoff: 6 }, range: [0, 100] },
      yaxis: { type: "category", autorange: "reversed", title: { text: "replica" } },
    }), SETTINGS);
  }
}

start((data) => {
  drawCluster(data);
  drawOptions(data);
  drawPercentiles(data);
  let charts = null;
  return {
    charts: () => {
      charts ??= new ClusterCharts(data, () => {});
      return charts.draw();
    },
  };
});
