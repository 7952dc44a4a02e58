// Pane: one system's pool at one instant, as a canvas of cells.

const REQUEST_COLOURS = (() => {
  // The hues of chart lines in three lightnesses, ordered so that neighbours differ in more than hue.
  const hues = [0, 4, 2, 3, 5, 1].map((i) => STYLE.lines[i]);
  const mix = (hex, towards, share) => "#" + [1, 3, 5].map((i) => {
    const value = parseInt(hex.slice(i, i + 2), 16);
    return Math.round(value + (towards - value) * share).toString(16).padStart(2, "0");
  }).join("");
  return [...hues, ...hues.map((h) => mix(h, 255, 0.38)), ...hues.map((h) => mix(h, 0, 0.35))];
})();

const TALLEST = 330, TALLEST_OF_SLOTS = 520, FILL_FROM = 5, CORNER_FROM = 6;

class Pane {
  constructor(system, map) {
    this.system = system;
    this.map = map;
    this.frames = new Frames(system.frames);
    this.cursor = null;
    this.heading = make("h3", {}, system.name);
    this.when = make("span", { className: "muted small" });
    this.canvas = make("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application"); // it handles keys itself
    this.stack = make("canvas", { className: "stack" });
    this.facts = make("p", { className: "facts" });
    this.swapCanvas = make("canvas");
    this.swapNote = make("p", { className: "muted small" });
    const swap = this.frames.swapRange;
    if (swap) {
      this.swapNote.textContent = `Swap space in host memory: places ${count(swap[0])} to ${count(swap[1] - 1)} of ` +
        `${count(system.frames.cpu_blocks)}; the others are never taken.`;
    }
    this.element = make("div", { className: "pane" }, make("div", { className: "head" }, this.heading, this.when),
      make("div", { className: "view" }, this.canvas), this.stack, this.facts,
      ...(swap ? [this.swapNote, make("div", { className: "view" }, this.swapCanvas)] : []));
    this.canvas.addEventListener("pointermove", (event) => this.point(event, this.canvas));
    this.canvas.addEventListener("pointerleave", () => this.map.leave());
    this.swapCanvas.addEventListener("pointermove", (event) => this.point(event, this.swapCanvas));
    this.swapCanvas.addEventListener("pointerleave", () => this.map.leave());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  // Give each slot a square of whole pixels, as large as possible; null if there are too many slots.
  layoutOfSlots(blocks, width) {
    const size = this.system.frames.block_size;
    let best = null;
    for (let columns = 1; columns * size <= width; columns *= 2) {
      const side = Math.floor(width / (columns * size)), rows = Math.ceil(blocks / columns);
      if (rows * side <= TALLEST_OF_SLOTS && (!best || side > best.h)) best = { columns, rows, w: side * size, h: side, bySlot: true };
    }
    return best;
  }

  // Choose the number of columns, a power of two (so that buddy chunks fill rows), that makes cells most square.
  layout(blocks, width) {
    const bySlot = this.map.size === "slot" ? this.layoutOfSlots(blocks, width) : null;
    if (bySlot) return bySlot;
    const large = this.map.size === "large";
    let best = null;
    for (let columns = 16; columns <= 1024; columns *= 2) {
      const w = large ? Math.max(10, Math.floor(width / columns)) : width / columns;
      const rows = Math.ceil(blocks / columns);
      const h = large ? w : Math.min(w * 1.15, 20, TALLEST / rows);
      const badness = Math.abs(Math.log(w / h)) + (large && w * columns > width ? 5 : 0);
      if (w >= 1 && h >= 1 && (!best || badness < best.badness)) best = { columns, rows, w, h, badness };
    }
    return best || { columns: 1024, rows: Math.ceil(blocks / 1024), w: 1, h: 1 };
  }

  box(grid, number) {
    const column = number % grid.columns, row = Math.floor(number / grid.columns);
    const x = Math.round(column * grid.w), y = Math.round(row * grid.h);
    return [x, y, Math.round((column + 1) * grid.w) - x, Math.round((row + 1) * grid.h) - y];
  }

  show(slot) {
    this.frames.seek(slot);
    this.draw();
  }

  draw() {
    const frames = this.frames, cells = frames.device;
    const width = this.element.clientWidth || 600;
    const grid = this.grid = this.layout(cells.size, width);
    const [w, h] = [Math.round(grid.w * grid.columns), Math.round(grid.h * grid.rows)];
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${h}px`;
    const pen = prepare(this.canvas, w, h);
    const gap = !grid.bySlot && grid.w >= 5 && grid.h >= 4.5 ? 1 : 0;
    const split = grid.bySlot || (grid.w >= FILL_FROM && grid.h >= 4);
    const fill = split && !grid.bySlot ? fills(pen) : entries.map(colourOf);
    const held = [frames.index.used, frames.index.state];
    // Group rectangles by fill, because changing a canvas's fill style is slow.
    const groups = new Map();
    const put = (look, x, y, u, v) => {
      let group = groups.get(look);
      if (!group) groups.set(look, group = []);
      group.push(x, y, u, v);
    };
    for (let block = 0; block < cells.size; block += 1) {
      const [x, y, u, v] = this.box(grid, block), parts = frames.parts(block), colour = this.colourOf(block);
      if (split) {
        let done = 0, from = x;
        parts.forEach((slots, i) => {
          if (!slots) return;
          done += slots;
          const to = done === frames.unit ? x + u - gap : x + Math.round((u - gap) * done / frames.unit);
          if (colour) put(held.includes(i) ? colour : `${colour}55`, from, y, to - from, v - gap);
          else put(i, from, y, to - from, v - gap);
          from = to;
        });
      } else {
        const most = parts.indexOf(Math.max(...parts));
        put(colour ? (held.includes(most) ? colour : `${colour}66`) : most, x, y, u - gap, v - gap);
      }
    }
    for (const [look, boxes] of groups) {
      pen.fillStyle = typeof look === "number" ? fill[look] : look;
      for (let i = 0; i < boxes.length; i += 4) pen.fillRect(boxes[i], boxes[i + 1], boxes[i + 2], boxes[i + 3]);
    }
    this.marks(pen, grid, gap);
    this.tell();
    if (frames.swapRange) this.drawSwap(width);
  }

  // The colour of a block's request or KV cache group, if selected and present; else null.
  colourOf(block) {
    const { by } = this.map, owner = this.frames.device.owner[block];
    if (by === "state") return null;
    const number = by === "group" ? this.frames.groupOf(block)
      : owner >= 0 ? this.frames.data.stays.request[owner] : null;
    return number === null ? null : REQUEST_COLOURS[number % REQUEST_COLOURS.length];
  }

  // Mark the starts of runs, shared blocks and the cells of the owner under the pointer.
  marks(pen, grid, gap) {
    const cells = this.frames.device, edge = style("--edge"), data = this.frames.data;
    if (grid.w >= 3 && !grid.bySlot) {
      pen.fillStyle = edge;
      for (let block = 0; block < cells.size; block += 1) {
        if (cells.place[block] === 0) {
          const [x, y, , v] = this.box(grid, block);
          pen.fillRect(Math.max(0, x - gap), y, 1, v - gap);
        }
      }
    }
    if (grid.w >= CORNER_FROM && grid.h >= CORNER_FROM) {
      for (let block = 0; block < cells.size; block += 1) {
        if (cells.references[block] < 2) continue;
        const [x, y, u, v] = this.box(grid, block), s = Math.max(3, Math.min(u, v) * 0.42);
        pen.fillStyle = "#000";
        pen.fillRect(x + (u - gap - s) / 2 - 1, y + (v - gap - s) / 2 - 1, s + 2, s + 2);
        pen.fillStyle = "#fff";
        pen.fillRect(x + (u - gap - s) / 2, y + (v - gap - s) / 2, s, s);
      }
    }
    const pointed = this.map.pointed;
    if (pointed !== null) {
      pen.fillStyle = edge;
      for (let block = 0; block < cells.size; block += 1) {
        const owner = cells.owner[block];
        if (owner < 0 || data.names[data.stays.request[owner]] !== pointed) continue;
        const [x, y, u, v] = this.box(grid, block), t = grid.w >= 8 ? 2 : 1;
        pen.fillRect(x, y, u - gap, t);
        pen.fillRect(x, y + v - gap - t, u - gap, t);
        if (grid.w >= 4) {
          pen.fillRect(x, y, t, v - gap);
          pen.fillRect(x + u - gap - t, y, t, v - gap);
        }
      }
    }
    if (this.cursor !== null) {
      const [x, y, u, v] = this.box(grid, this.cursor);
      pen.strokeStyle = style("--accent");
      pen.lineWidth = 3;
      pen.strokeRect(x - 1.5, y - 1.5, u + 2, v + 2);
    }
  }

  drawSwap(width) {
    const [low, high] = this.frames.swapRange, cells = this.frames.swap, grid = this.layout(high - low, width);
    grid.h = Math.min(grid.h, 14);
    this.swapGrid = grid;
    const [w, h] = [Math.round(grid.w * grid.columns), Math.round(grid.h * grid.rows)];
    this.swapCanvas.style.width = `${w}px`;
    this.swapCanvas.style.height = `${h}px`;
    const pen = prepare(this.swapCanvas, w, h), gap = grid.w >= 5 && grid.h >= 4.5 ? 1 : 0;
    for (let place = low; place < high; place += 1) {
      const [x, y, u, v] = this.box(grid, place - low), owner = cells.owner[place];
      pen.fillStyle = owner < 0 ? style("--free")
        : REQUEST_COLOURS[this.frames.data.stays.request[owner] % REQUEST_COLOURS.length];
      pen.fillRect(x, y, u - gap, v - gap);
    }
  }

  tell() {
    const frames = this.frames, [running, waiting, swapped] = frames.counts, whole = frames.data.blocks * frames.unit;
    this.when.textContent = frames.iteration < 0 ? `nothing is scheduled, since ${instant(frames.clock)}`
      : `iteration ${count(frames.iteration)} at ${instant(frames.clock)}`;
    const { ledger } = frames;
    this.stack.style.width = this.canvas.style.width;
    drawStack(this.stack, ledger, !this.grid.bySlot);
    const facts = [["running", running], ["waiting", waiting], ["swapped out", swapped]]
      .filter(([label, n]) => n || label !== "swapped out").map(([label, n]) => [label, count(n)]);
    entries.forEach((entry, i) => {
      if (ledger[i]) facts.push([entry.label.split(" (")[0], `${digits(100 * ledger[i] / whole)} %`]);
    });
    const events = frames.data.events;
    for (const [label, name] of [["preempted", "num_preempted"], ["blocks swapped out", "blocks_swapped_out"],
      ["blocks swapped in", "blocks_swapped_in"], ["blocks copied", "blocks_copied"]]) {
      const n = events ? events[name][frames.frame] : 0;
      if (n) facts.push([`${label} since the frame before`, count(n)]);
    }
    this.facts.replaceChildren(...facts.map(([label, n]) => make("span", {}, `${label} `, make("b", {}, n))));
    this.canvas.setAttribute("aria-label", `Memory map of ${this.system.name}, ${this.when.textContent}: ` +
      facts.map(([label, n]) => `${label} ${n}`).join(", "));
  }

  blockAt(event, canvas) {
    const swap = canvas === this.swapCanvas, grid = swap ? this.swapGrid : this.grid;
    const { left, top } = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - left) / grid.w), row = Math.floor((event.clientY - top) / grid.h);
    const block = row * grid.columns + column + (swap ? this.frames.swapRange[0] : 0);
    const end = swap ? this.frames.swapRange[1] : this.frames.device.size;
    return column >= 0 && column < grid.columns && block >= 0 && block < end ? block : null;
  }

  point(event, canvas) {
    const block = this.blockAt(event, canvas), swap = canvas === this.swapCanvas;
    if (block === null) { this.map.leave(); return; }
    const owner = (swap ? this.frames.swap : this.frames.device).owner[block];
    this.map.point(this.frames.requestOf(owner),
      swap ? this.frames.describeSwap(block) : this.frames.describe(block), event);
  }

  // Arrow keys move the time; with Shift they select a cell.
  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.grid.columns, ArrowDown: this.grid.columns };
    const step = steps[event.key];
    if (step === undefined) {
      if (event.key === " ") { event.preventDefault(); this.map.toggle(); }
      if (event.key === "Escape") { this.cursor = null; this.map.leave(); }
      return;
    }
    event.preventDefault();
    if (!event.shiftKey) {
      this.map.move(Math.abs(step) === 1 ? step : Math.sign(step) * 10);
      return;
    }
    const to = this.cursor === null ? 0 : this.cursor + step;
    this.cursor = Math.max(0, Math.min(this.frames.device.size - 1, to));
    this.map.point(this.frames.requestOf(this.frames.device.owner[this.cursor]), this.frames.describe(this.cursor), null);
  }
}
