// Tiers: beside the device's ledger that of each tier, over the same time, and its means as a table.

const TIER_HATCHES = { pending: "/", pinned: "x", duplicate: "|" };

const tierColour = (entry) => (entry.key === "free" ? style("--free") : entry.colour);

function drawTierKey(holder, tierEntries) {
  holder.replaceChildren(...tierEntries.map((entry) => {
    const canvas = make("canvas"), pen = prepare(canvas, 22, 14), shape = TIER_HATCHES[entry.key];
    pen.fillStyle = shape ? hatch(pen, shape, tierColour(entry)) : tierColour(entry);
    pen.fillRect(0, 0, 22, 14);
    return make("span", {}, canvas, entry.label);
  }));
}

function drawTierTable(data, tierEntries, tiered) {
  const rows = tiered.flatMap(([system, i]) => system.tiers.map((tier, k) =>
    [k ? "" : named(system, i), tier.name, tier.capacity === null ? "no limit" : count(tier.capacity),
      ...tierEntries.map(({ key }) => digits(tier.means[key]))]));
  table(byId("tier-table"), ["system", "tier", "chunks", ...tierEntries.map(({ label }) => `${label.split(" (")[0]},\n%`)], rows);
  leftAlign(byId("tier-table"), 1);
}

// Lay the charts out; each is drawn by what is returned.
function layOutTiers(charts) {
  const { systems, tier_entries: tierEntries } = charts.data;
  const tiered = systems.map((system, i) => [system, i]).filter(([system]) => system.tiers.length);
  byId("by-tiers").hidden = !tiered.length;
  if (!tiered.length) return [];
  drawTierTable(charts.data, tierEntries, tiered);
  const drawers = [() => drawTierKey(byId("tier-key"), tierEntries)];
  for (const [system, i] of tiered) {
    for (const tier of system.tiers) {
      const chart = place(byId("tier-charts"), `${system.name}: ${tier.name}`, lineMark(i));
      drawers.push(() => drawTier(charts, chart, tier, tierEntries));
    }
  }
  return drawers;
}

function drawTier(charts, chart, tier, tierEntries) {
  const percent = 100 / tier.scale, x = Array.from(tier.clock);
  const traces = tierEntries.filter(({ key }) => key !== "free" || tier.capacity !== null).map((entry) => ({
    x, y: Array.from(tier[entry.key], (chunks) => chunks * percent), name: entry.label.split(" (")[0],
    type: "scatter", mode: "lines", stackgroup: "tier", line: { width: 0, shape: "hv" }, fillcolor: tierColour(entry),
    fillpattern: { shape: TIER_HATCHES[entry.key] || "", bgcolor: tierColour(entry), fgcolor: "rgba(255,255,255,.45)", size: 7, solidity: 0.2 },
    hovertemplate: "%{y:.1f} %",
  }));
  charts.timeChart(chart, traces, { title: tier.capacity === null ? "% of the most used" : "% of the tier", range: [0, 100] });
}
