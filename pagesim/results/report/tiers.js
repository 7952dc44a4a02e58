// Tiers: the ledger of each tier next to the device's, over the same time, and its means as a table.

function drawTierTable(data, tiered) {
  const rows = tiered.flatMap(([system, i]) => system.tiers.map((tier, k) =>
    [k ? "" : named(system, i), tier.name, tier.capacity === null ? "no limit" : count(tier.capacity),
      ...STYLE.tiers.map(({ key }) => digits(tier.means[key]))]));
  table(byId("tier-table"), ["system", "tier", "chunks", ...STYLE.tiers.map(({ label }) => `${label.split(" (")[0]},\n%`)], rows);
  leftAlign(byId("tier-table"), 1);
}

// Lay the charts out; return a function that draws each.
function layOutTiers(charts) {
  const { systems } = charts.data;
  const tiered = systems.map((system, i) => [system, i]).filter(([system]) => system.tiers.length);
  byId("by-tiers").hidden = !tiered.length;
  if (!tiered.length) return [];
  drawTierTable(charts.data, tiered);
  const drawers = [() => drawKey(byId("tier-key"), STYLE.tiers)];
  for (const [system, i] of tiered) {
    for (const tier of system.tiers) {
      const chart = place(byId("tier-charts"), `${system.name}: ${tier.name}`, lineMark(i));
      drawers.push(() => drawTier(charts, chart, tier));
    }
  }
  return drawers;
}

function drawTier(charts, chart, tier) {
  const traces = STYLE.tiers.filter(({ key }) => key !== "free" || tier.capacity !== null).map((entry) =>
    stacked(tier.clock, tier[entry.key], 100 / tier.scale, entry.label.split(" (")[0], areaLook(entry)));
  charts.timeChart(chart, traces, { title: tier.capacity === null ? "% of the most used" : "% of the tier", range: [0, 100] });
}
