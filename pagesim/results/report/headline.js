// Headline: tables of metrics, the scenario, percentiles and preemptions.

const NUMBERS = [
  ["requests\nfinished", ({ requests: { finished, total } }) =>
    (finished === total ? `all ${count(total)}` : `${count(finished)} of ${count(total)}`)],
  ["used,\n% of cache", (s) => digits(s.memory.strict.per_iteration.used)],
  ["batch,\nmean", (s) => digits(s.batch.mean)],
  ["requests\n/s", (s) => digits(s.throughput.requests_per_s)],
  ["tokens\n/s", (s) => digits(s.throughput.tokens_per_s)],
  ["s/token,\nmean", (s) => digits(s.normalized_latency.mean)],
  ["s/token,\np95", (s) => digits(s.normalized_latency.p95)],
  ["TTFT, s,\np50", (s) => digits(s.ttft.p50)],
  ["TPOT, s,\np50", (s) => digits(s.tpot.p50)],
  ["preempted", (s) => count(s.preemptions.recompute + s.preemptions.swap)],
];

const LATENCIES = [
  ["normalized_latency", "Normalized latency", "from arrival to the end, per output token"],
  ["ttft", "Time to first token (TTFT)", "from arrival"],
  ["tpot", "Time per output token (TPOT)", "after the first"],
  ["queueing", "Queueing", "from arrival until the prompt is first computed"],
];

function table(holder, head, rows) {
  const cell = (tag, content) => {
    const lines = typeof content === "string" ? content.split("\n") : [content];
    const element = make(tag);
    lines.forEach((line, i) => element.append(...(i ? [make("br"), line] : [line])));
    return element;
  };
  const body = rows.map(([first, ...rest]) => {
    const name = cell("th", first);
    name.scope = "row";
    return make("tr", {}, name, ...rest.map((content) => cell("td", content)));
  });
  const top = head.map((content) => Object.assign(cell("th", content), { scope: "col" }));
  holder.replaceChildren(make("thead", {}, make("tr", {}, ...top)), make("tbody", {}, ...body));
}

function leftAlign(holder, column) {
  for (const row of holder.rows) row.cells[column].classList.add("left");
}

const named = (system, i) => make("span", {}, lineMark(i), system.name);

function drawHeadline(data) {
  const bars = data.systems.map(() => make("canvas", { className: "stack" }));
  const rows = data.systems.map((system, i) =>
    [named(system, i), bars[i], ...NUMBERS.map(([, of]) => of(system.summary))]);
  table(byId("numbers"), ["system", "where the memory went", ...NUMBERS.map(([label]) => label)], rows);
  byId("numbers").tHead.rows[0].cells[1].className = "bar";
  bars.forEach((bar, i) => {
    bar.parentElement.className = "bar";
    const means = data.systems[i].summary.memory.strict.per_iteration;
    bar.setAttribute("role", "img");
    const told = entries.map((e) => [e.label, amountOf(e, means)]).filter(([, share]) => share).map(([label, share]) => `${label} ${digits(share)} %`);
    bar.setAttribute("aria-label", told.join(", "));
    bar.title = told.join("\n");
  });
  const draw = () => bars.forEach((bar, i) => {
    const means = data.systems[i].summary.memory.strict.per_iteration;
    drawStack(bar, entries.map((entry) => amountOf(entry, means)));
  });
  draw();
  return draw;
}

// Each category's share of the cache; the parts of internal fragmentation follow their sum.
function drawShares(data) {
  const share = (means, keys) => digits(keys.reduce((sum, key) => sum + (means[key] ?? 0), 0));
  const heads = data.categories.map(({ label, part }) => `${part ? "of which\n" : ""}${label.replace(" ", "\n")},\n%`);
  table(byId("shares"), ["system", ...heads], data.systems.map((system, i) => [named(system, i),
    ...data.categories.map(({ keys }) => share(system.summary.memory.strict.per_iteration, keys))]));
}

// Show the options that the systems share and those in which they differ; return all options and the shared ones.
function drawOptions(data) {
  const all = data.systems.map((system) => system.scenario);
  const names = [...new Set(all.flatMap((options) => Object.keys(options)))];
  const same = names.filter((name) => all.every((options) => options[name] === all[0][name]));
  const pairs = same.map((name) => make("div", {}, make("dt", {}, name), make("dd", {}, String(all[0][name]))));
  byId("options").append(make("dl", {}, ...pairs));
  const differ = names.filter((name) => !same.includes(name));
  const told = differ.length === 1 && data.systems.every((system) => system.name === system.scenario[differ[0]]);
  if (differ.length && !told) {
    const holder = make("table");
    table(holder, ["system", ...differ], data.systems.map((system, i) =>
      [named(system, i), ...differ.map((name) => String(system.scenario[name] ?? "–"))]));
    byId("options").append(make("p", { className: "muted" }, "What differs:"),
      make("div", { className: "scroll" }, holder));
  }
  return { all, same };
}

function drawScenario(data) {
  const { all, same } = drawOptions(data);
  const { memory } = data.systems[0].summary, first = all[0];
  const one = (name) => same.includes(name) && first[name] !== undefined;
  byId("subtitle").textContent = [
    one("trace") && `${first.trace}`,
    one("model") && `${first.model} on ${first.gpu}`,
    data.systems.every((s) => s.summary.memory.num_blocks === memory.num_blocks)
      && (memory.capacity_bytes && !memory.page_bytes ? `${count(memory.capacity_bytes)} bytes for the cache`
        : `${count(memory.num_blocks)} blocks of ${
          memory.page_bytes ? `${count(memory.page_bytes)} bytes` : `${count(memory.block_size)} tokens`}`),
    one("rate") && `${first.rate} requests/s${one("duration") ? ` for ${count(first.duration)} s` : ""}`,
    data.systems.length > 1 ? `${data.systems.length} systems` : data.systems[0].name,
  ].filter(Boolean).join(" · ");
  document.title = `pagesim report: ${data.systems.map((system) => system.name).join(", ")}`;
  byId("made").textContent =
    `Made by pagesim ${data.version}. What each number means: docs/metrics.md. This page fetches nothing.`;
}

// "1:window-128" in readable form.
const groupName = (name) => name.replace(":", " ").replace("-", " ");

function drawGroups(data) {
  const hybrid = data.systems.map((system, i) => [system, i]).filter(([system]) => system.summary.memory.groups);
  byId("by-groups").hidden = !hybrid.length;
  if (!hybrid.length) return;
  const means = hybrid.flatMap(([system]) => Object.values(system.summary.memory.groups).map((g) => g.per_iteration));
  const shown = entries.filter(({ key }) => means.some((mean) => mean[key]));
  const rows = hybrid.flatMap(([system, i]) => Object.entries(system.summary.memory.groups).map(([name, group], k) =>
    [k ? "" : named(system, i), groupName(name), count(group.layers), count(group.block_size), count(group.filled_bytes),
      ...shown.map(({ key }) => digits(group.per_iteration[key]))]));
  table(byId("groups"), ["system", "group", "layers", "tokens\na block", "bytes filled\nof a block",
    ...shown.map((entry) => `${entry.label.split(" (")[0]},\n%`)], rows);
  leftAlign(byId("groups"), 1);
}

function drawPercentiles(data) {
  const points = ["mean", "p50", "p90", "p99"];
  const rows = data.systems.map((system, i) =>
    [named(system, i), ...LATENCIES.flatMap(([key]) => points.map((p) => digits(system.summary[key][p])))]);
  table(byId("percentiles"), ["seconds", ...LATENCIES.flatMap(() => points)], rows);
  groupColumns(byId("percentiles"), LATENCIES.map(([, label]) => label), points.length);
}

// Put headings above a table's columns except the first, each spanning `span` columns.
function groupColumns(holder, labels, span) {
  const heads = labels.map((label) => make("th", { colSpan: span, scope: "colgroup" }, label));
  for (const row of holder.rows) labels.forEach((_, k) => row.cells[1 + k * span].classList.add("first"));
  holder.tHead.prepend(make("tr", { className: "groups" }, make("th"), ...heads));
}

function drawPreemptions(data) {
  const rows = [], notes = [];
  data.systems.forEach((system, i) => {
    const { recompute, swap, prices } = system.preemptions;
    let first = true;
    for (const [kind, cost] of [["recomputed", recompute], ["swapped out", swap]]) {
      if (!cost.count) continue;
      const known = cost.away_s !== undefined;
      rows.push([first ? named(system, i) : "", kind, count(cost.count),
        known && kind === "recomputed" ? count(cost.tokens) : "–",
        known && kind !== "recomputed" ? count(cost.blocks) : "–",
        known ? seconds(cost.mean_s) : "–", known ? seconds(cost.longest_s) : "–",
        known ? seconds(cost.away_s) : "–"]);
      first = false;
      if (cost.never_back) notes.push(`${system.name}: ${count(cost.never_back)} never came back.`);
    }
    for (const price of prices || []) {
      notes.push(`${system.name}: ${count(price.victims)} victims could have been preempted either way and were ` +
        `preempted by ${price.choice}: swapping was priced at ${seconds(price.swap_s)}, recomputing at ` +
        `${seconds(price.recompute_s)} in all.`);
    }
  });
  const holder = byId("preempted");
  if (!rows.length) {
    holder.append(make("p", {}, "No request was preempted."));
    return;
  }
  const body = make("table");
  table(body, ["system", "", "times", "tokens\ncomputed again", "blocks\nmoved out", "away,\nmean", "away,\nlongest",
    "away,\nin all"], rows);
  leftAlign(body, 1);
  const quiet = data.systems.filter((system) =>
    !system.preemptions.recompute.count && !system.preemptions.swap.count);
  if (quiet.length) notes.push(`No request was preempted under ${quiet.map((system) => system.name).join(", ")}.`);
  holder.append(make("div", { className: "scroll" }, body),
    ...notes.map((note) => make("p", { className: "muted small" }, note)),
    make("p", { className: "muted small" }, "Away: from the preemption to the start of the iteration in which the " +
      "request runs again. Known from a replay; a dash where there was none, or where it does not apply."));
}
