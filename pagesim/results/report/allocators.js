// Allocators: one workload under several allocators, played side by side, with the memory use of each.

const percent = (share) => (share === undefined || share === null ? "–"
  : (100 * share).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 }));

function drawFragmentation(data) {
  const columns = Object.keys(data.systems[0].fragmentation), holder = byId("fragmented");
  const swatch = (part) => make("span", { className: "swatch", style: `background: ${part.colour}` });
  table(holder, ["% of the cache", ...data.systems.flatMap(() => columns.map((column) => column.replace(" over ", "\nover ")))],
    data.categories.map(({ key, label, part }) => [
      make("span", { className: part ? "part" : "" }, swatch(STYLE.parts[key]), label),
      ...data.systems.flatMap(({ fragmentation }) => columns.map((column) => percent(fragmentation[column][label])))]));
  groupColumns(holder, data.systems.map(({ name }) => name), columns.length);
}

start((data) => {
  const bars = drawHeadline(data);
  drawFragmentation(data);
  drawScenario(data);
  const map = new MemoryMap(data, () => {});
  return {
    map,
    again: () => {
      bars();
      map.draw();
      if (map.systems.length) map.drawKey();
    },
  };
});
