// Plan: how each GPU's memory is divided before serving, and how many requests fit, for plans side by side.

const GIB = 2 ** 30;
const gib = (bytes) => (bytes / GIB).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

function drawPlans(data) {
  const plans = data.systems;
  const names = [...new Set(plans.flatMap(({ parts }) => parts.map(({ name }) => name)))];
  const part = (plan, name) => plan.parts.find((each) => each.name === name);
  table(byId("parts"), ["GiB", ...names, "requests\nat once"], plans.map((plan, i) => [named(plan, i),
    ...names.map((name) => (part(plan, name) ? `${gib(part(plan, name).bytes)}\n${part(plan, name).known}` : "–")),
    count(plan.at_once)]));
  const lengths = lengthsOf(plans);
  table(byId("length-table"), ["requests of", ...lengths.map((tokens) => `${count(tokens)}\ntokens`)], plans.map((plan, i) => {
    const fit = new Map(Array.from(plan.lengths.tokens, (tokens, k) => [tokens, plan.lengths.fit[k]]));
    return [named(plan, i), ...lengths.map((tokens) => (fit.has(tokens) ? count(fit.get(tokens)) : "–"))];
  }));
  for (const plan of plans) {
    byId("logs").append(...(plans.length > 1 ? [make("h3", {}, plan.name)] : []), make("pre", {}, plan.log.join("\n")),
      make("p", {}, `${plan.is_bound ? "By what each holds in the end, at most" : "Found by replaying them:"} ${count(plan.at_once)} requests of ${count(plan.scenario.max_model_len)} tokens at once${plan.is_bound ? "" : ", none preempted"}.`),
      ...plan.notes.map((note) => make("p", { className: "muted small" }, note)));
  }
  table(byId("groups"), ["plan", "rule", "groups", "layers", "tokens\na block", "bytes\na page", "padding,\n%", "blocks of a\nrequest, at most"],
    plans.flatMap((plan, i) => plan.groups.map((group, k) => [k ? "" : named(plan, i), group.rule, count(group.groups), count(group.layers),
      count(group.block_size), count(group.page_bytes), digits(100 * group.padding), count(group.most_blocks)])));
  leftAlign(byId("groups"), 1);
  byId("subtitle").textContent = plans.map((plan) => plan.name).join(" · ");
  document.title = `pagesim plan: ${plans.map((plan) => plan.name).join(", ")}`;
  byId("made").textContent = `Made by pagesim ${data.version}. What each number means: docs/plan.md. This page fetches nothing.`;
}

const lengthsOf = (plans) => [...new Set(plans.flatMap((plan) => Array.from(plan.lengths.tokens)))].sort((a, b) => a - b);

function drawPlanCharts(data) {
  const plans = data.systems, lengths = lengthsOf(plans), y = plans.map((plan) => plain(plan.name));
  const names = [...new Set(plans.flatMap(({ parts }) => parts.map(({ name }) => name)))];
  byId("bars").style.height = `${130 + 34 * plans.length}px`;
  Plotly.react(byId("bars"), names.map((name) => ({
    y, x: plans.map(({ parts }) => (parts.find((part) => part.name === name) || { bytes: 0 }).bytes / GIB), name, type: "bar", orientation: "h",
    marker: { color: colourOf(STYLE.parts[name]), line: { width: 1, color: style("--line") } }, hovertemplate: "%{x:.2f} GiB",
  })), layoutOf({
    barmode: "stack", margin: { l: 48, r: 12, t: 8, b: 72 }, hovermode: "y unified", bargap: 0.3, showlegend: true, legend: { orientation: "h", traceorder: "normal", yref: "container", y: 0, yanchor: "bottom" },
    xaxis: { title: { text: "GiB", standoff: 6 } }, yaxis: { type: "category", autorange: "reversed" },
  }), SETTINGS);
  Plotly.react(byId("length-chart"), plans.map((plan, i) => ({
    x: Array.from(plan.lengths.tokens), y: Array.from(plan.lengths.fit), name: plain(plan.name), type: "scatter", mode: "lines+markers",
    line: lineOf(i), hovertemplate: "%{y:,}",
  })), layoutOf({
    xaxis: { type: "log", title: { text: "tokens of a request", standoff: 6 }, tickvals: lengths, ticktext: lengths.map(count), tickangle: 0 },
    yaxis: { type: "log", title: { text: "requests", standoff: 6 }, tickformat: ",", dtick: 1 },
  }), SETTINGS);
}

start((data) => {
  drawPlans(data);
  drawOptions(data);
  systemKey(byId("length-key"), data.systems);
  return { charts: () => drawPlanCharts(data) };
});
