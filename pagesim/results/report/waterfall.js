// Waterfall: when each request was queued, in prefill, decoding or preempted.

const MOST_LINES = 40;

class Waterfall {
  constructor(data) {
    this.data = data;
    const system = byId("fall-system");
    data.systems.forEach((each, i) => system.append(make("option", { value: String(i) }, each.name)));
    system.value = String(data.systems.length - 1);
    byId("fall-name").addEventListener("input", () => this.draw());
    for (const id of ["fall-kind", "fall-lines"]) byId(id).addEventListener("change", () => this.draw());
    system.addEventListener("change", () => { this.kinds(); this.draw(); });
    for (const id of ["fall-from", "fall-to"]) {
      byId(id).addEventListener("change", () => this.zoom([Number(byId("fall-from").value), Number(byId("fall-to").value)]));
    }
    byId("fall-in").addEventListener("click", () => this.scale(0.5));
    byId("fall-out").addEventListener("click", () => this.scale(2));
    byId("fall-all").addEventListener("click", () => this.zoom([0, data.end]));
    this.kinds();
    this.range = [0, data.end];
  }

  // Start around a time with a range four times the median request's duration, or with everything for few requests.
  around(at) {
    if (this.chosen().length <= MOST_LINES) return;
    const { arrival_s: arrivals, finish_s: finishes } = this.system.waterfall;
    const took = arrivals.map((arrival, i) => finishes[i] - arrival).filter((s) => s > 0).sort();
    const half = took.length ? 2 * took[Math.floor(took.length / 2)] : this.data.end / 2;
    const from = Math.max(0, Math.min(at - half, this.data.end - 2 * half));
    this.range = [from, Math.min(this.data.end, from + 2 * half)];
  }

  get system() { return this.data.systems[Number(byId("fall-system").value)]; }

  kinds() {
    const { statuses } = this.system.waterfall, kind = byId("fall-kind");
    kind.replaceChildren(make("option", { value: "all" }, "all requests"), make("option", { value: "preempted" }, "preempted ones"),
      ...statuses.map((status) => make("option", { value: `status ${status}` }, `${status} ones`)));
  }

  scale(factor) {
    const [from, to] = this.range, middle = (from + to) / 2, half = (to - from) / 2 * factor;
    this.zoom([middle - half, middle + half]);
  }

  zoom([from, to]) {
    if (!(to > from)) return;
    this.range = [Math.max(0, from), Math.min(this.data.end, to)];
    this.draw();
  }

  // The selected requests that are present at some time in the range.
  chosen() {
    const fall = this.system.waterfall, [from, to] = this.range;
    const name = byId("fall-name").value.toLowerCase(), kind = byId("fall-kind").value;
    const status = kind.startsWith("status ") ? fall.statuses.indexOf(kind.slice(7)) : null;
    const found = [];
    for (let i = 0; i < fall.names.length; i += 1) {
      const end = Number.isNaN(fall.finish_s[i]) ? (fall.statuses[fall.status[i]] === "unfinished" ? this.data.end : fall.arrival_s[i]) : fall.finish_s[i];
      if (fall.arrival_s[i] > to || end < from) continue;
      if (kind === "preempted" && !(fall.recomputes[i] || fall.swaps[i])) continue;
      if (status !== null && fall.status[i] !== status) continue;
      if (name && !fall.names[i].toLowerCase().includes(name)) continue;
      found.push(i);
    }
    return found;
  }

  // A request's phases: kind, start, end, and the cost of a preemption.
  phases(i) {
    const fall = this.system.waterfall, end = this.data.end;
    const or = (value, other) => (Number.isNaN(value) ? other : value);
    const finish = or(fall.finish_s[i], fall.statuses[fall.status[i]] === "unfinished" ? end : fall.arrival_s[i]);
    const scheduled = or(fall.first_scheduled_s[i], finish), first = or(fall.first_token_s[i], finish);
    const phases = [["queued", fall.arrival_s[i], scheduled], ["prefill", scheduled, first], ["decode", first, finish]];
    for (const a of this.absencesOf(i)) {
      const { swapped, start, end: back } = fall.absences;
      const price = swapped[a] ? `${count(fall.absences.blocks[a])} blocks moved out`
        : `${count(fall.absences.tokens[a])} tokens computed again`;
      phases.push([swapped[a] ? "swapped" : "preempted", start[a], Math.min(back[a], finish), price]);
    }
    return phases.filter(([, from, to]) => to > from);
  }

  absencesOf(i) {
    const { absences } = this.system.waterfall;
    if (!absences) return [];
    if (!absences.byRequest) {
      absences.byRequest = new Map();
      absences.request.forEach((request, a) => {
        if (!absences.byRequest.has(request)) absences.byRequest.set(request, []);
        absences.byRequest.get(request).push(a);
      });
    }
    return absences.byRequest.get(i) || [];
  }

  draw() {
    const fall = this.system.waterfall, found = this.chosen(), [from, to] = this.range;
    const lines = Math.min(found.length, Number(byId("fall-lines").value));
    const shown = Array.from({ length: lines }, (_, k) => found[Math.floor(k * found.length / lines)]);
    byId("fall-from").value = String(Math.round(from * 1000) / 1000);
    byId("fall-to").value = String(Math.round(to * 1000) / 1000);
    this.say(found.length, lines);
    const bars = new Map(STYLE.phases.map(({ key }) => [key, { x: [], base: [], y: [], text: [] }]));
    shown.forEach((i, line) => {
      const tokens = `${count(fall.prompt_tokens[i])} prompt and ${count(fall.output_tokens[i])} output tokens, ${fall.statuses[fall.status[i]]}`;
      for (const [phase, start, end, price] of this.phases(i)) {
        const bar = bars.get(phase);
        bar.x.push(end - start);
        bar.base.push(start);
        bar.y.push(line);
        bar.text.push(`<b>request ${plain(fall.names[i])}</b>: ${STYLE.phases.find((p) => p.key === phase).label}<br>` +
          `${instant(start)} to ${instant(end)}, ${seconds(end - start)}<br>${price ? `${price}<br>` : ""}${tokens}`);
      }
    });
    const traces = STYLE.phases.filter(({ key }) => bars.get(key).x.length).map((phase) => ({
      ...bars.get(phase.key), type: "bar", orientation: "h", name: phase.label, hovertemplate: "%{text}<extra></extra>", textposition: "none",
      ...barLook(phase),
    }));
    const few = lines <= MOST_LINES;
    Plotly.react(byId("fall"), traces, layoutOf({
      barmode: "overlay", bargap: few ? 0.25 : 0.08, hovermode: "closest", showlegend: true, dragmode: "zoom",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" }, margin: { l: 60, r: 12, t: 34, b: 40 },
      xaxis: { title: { text: "time (s)", standoff: 6 }, range: [from, to] },
      yaxis: {
        range: [Math.max(lines, 1) - 0.5, -0.5], fixedrange: true, ticks: "", zeroline: false, showgrid: false, showticklabels: few,
        title: { text: few ? "" : "requests, by arrival" }, tickfont: { size: 10 },
        ...(few ? { tickvals: shown.map((_, k) => k), ticktext: shown.map((i) => plain(fall.names[i].slice(0, 24))) } : {}),
      },
    }), SETTINGS);
    if (!byId("fall").dataset.listens) {
      byId("fall").dataset.listens = "yes";
      byId("fall").on("plotly_relayout", (event) => {
        if (event["xaxis.range[0]"] !== undefined) this.zoom([event["xaxis.range[0]"], event["xaxis.range[1]"]]);
      });
      byId("fall").on("plotly_doubleclick", () => this.zoom([0, this.data.end]));
    }
  }

  say(found, lines) {
    const { total, names, absences } = this.system.waterfall;
    const texts = [`${count(found)} requests are there between ${instant(this.range[0])} and ${instant(this.range[1])}.`];
    if (lines < found) texts.push(`${lines} of them are shown, evenly spaced: zoom in, filter or ask for more lines to see others.`);
    if (names.length < total) texts.push(`The page holds ${count(names.length)} of the ${count(total)} requests, evenly spaced.`);
    if (!absences) texts.push("When requests were preempted is not known without a replay.");
    byId("fall-left-out").textContent = texts.join(" ");
  }
}
