// Tree: a radix tree at one instant. A node's width is the number of tokens in its subtree; its children are below it.

const RECENCY = [[1, "#fde725"], [5, "#7ad151"], [20, "#22a884"], [60, "#2a788e"], [300, "#414487"], [Infinity, "#440154"]];
const TREE_ROW = 24, LARGEST = 12, NAMED = 6;

// The snapshots of one system, split into single ones.
class Trees {
  constructor(data) {
    this.data = data;
    const starts = (sizes) => sizes.reduce((found, size) => [...found, found[found.length - 1] + size], [0]);
    this.first = starts(Array.from(data.sizes));
    this.firstHeld = starts(Array.from(data.held.sizes));
    this.seek(0);
  }

  seek(slot) {
    const { data } = this, at = this.at = data.shown[slot];
    const cut = (name) => data[name].subarray(this.first[at], this.first[at + 1]);
    for (const name of ["parent", "start", "end", "locks", "by", "inserted_ms", "used_ms", "hits"]) this[name] = cut(name);
    this.size = this.parent.length;
    this.clock = data.clock[at];
    this.children = Array.from({ length: this.size }, () => []);
    this.roots = [];
    this.behind = Array.from(this.end, (end, i) => end - this.start[i]);
    for (let i = this.size - 1; i >= 0; i -= 1) {
      const parent = this.parent[i];
      (parent < 0 ? this.roots : this.children[parent]).unshift(i);
      if (parent >= 0) this.behind[parent] += this.behind[i];
    }
    this.holders = new Map();
    for (let i = this.firstHeld[at]; i < this.firstHeld[at + 1]; i += 1) {
      for (let node = data.held.node[i]; node >= 0; node = this.parent[node]) {
        if (!this.holders.has(node)) this.holders.set(node, []);
        this.holders.get(node).push(data.names[data.held.by[i]]);
      }
    }
  }

  tokens(node) { return this.end[node] - this.start[node]; }

  idle(node) { return Math.max(0, this.clock - this.used_ms[node] / 1000); }

  held(node) {
    const names = this.holders.get(node) || [];
    if (!this.locks[node]) return "no request: it can be evicted once nothing follows it";
    if (!names.length) return "a request that has just ended";
    const some = names.slice(0, NAMED).join(", ");
    return names.length > NAMED ? `${some} and ${count(names.length - NAMED)} more` : some;
  }

  describe(node) {
    return [`${count(this.tokens(node))} tokens, ${count(this.start[node])} to ${count(this.end[node])} of the sequence`,
      `held by ${this.held(node)}`,
      `inserted by request ${this.data.names[this.by[node]]} at ${instant(this.inserted_ms[node] / 1000)}`,
      `used ${seconds(this.idle(node))} ago`,
      `${count(this.hits[node])} ${this.hits[node] === 1 ? "sequence was" : "sequences were"} inserted through it`,
      `${count(this.behind[node])} tokens in it and behind it`];
  }
}

class TreeView {
  constructor(data) {
    this.systems = data.systems.filter((system) => system.trees);
    byId("tree").hidden = byId("tree-link").hidden = !this.systems.length;
    if (!this.systems.length) return;
    this.slot = 0;
    this.cursor = null;
    this.made = this.systems.map((system) => new Trees(system.trees));
    const choice = byId("tree-system");
    this.systems.forEach((system, i) => choice.append(make("option", { value: String(i) }, system.name)));
    byId("tree-system-label").hidden = this.systems.length < 2;
    choice.addEventListener("change", () => { this.cursor = null; this.seek(this.slot); });
    this.canvas = byId("tree-canvas");
    this.canvas.addEventListener("pointermove", (event) => this.point(this.nodeAt(event), event));
    this.canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    const slider = byId("tree-time");
    slider.max = String(this.systems[0].trees.shown.length - 1);
    slider.addEventListener("input", () => { this.cursor = null; this.seek(Number(slider.value)); });
    for (const radio of document.querySelectorAll('input[name="tree-colour"]')) {
      radio.addEventListener("change", () => this.draw());
    }
    this.seek(Math.floor(this.systems[0].trees.shown.length / 2));
  }

  get tree() { return this.made[Number(byId("tree-system").value)]; }

  seek(slot) {
    const { tree } = this, { data } = tree, slider = byId("tree-time");
    this.slot = slot;
    tree.seek(slot);
    slider.value = String(slot);
    slider.setAttribute("aria-valuetext", instant(data.instants[slot]));
    byId("tree-now").textContent = instant(data.instants[slot]);
    this.draw();
  }

  // The instant closest to a time in seconds.
  seekTime(at) {
    if (!this.systems.length) return;
    const { instants } = this.tree.data;
    let slot = 0;
    while (slot + 1 < instants.length && Math.abs(instants[slot + 1] - at) <= Math.abs(instants[slot] - at)) slot += 1;
    if (slot !== this.slot) { this.cursor = null; this.seek(slot); }
  }

  draw() {
    if (!this.systems.length) return;
    const { tree } = this, width = byId("tree-view").clientWidth || 600;
    const whole = tree.roots.reduce((sum, node) => sum + tree.behind[node], 0);
    this.boxes = [];
    // Widths are fractions of the total; a node starts where its preceding sibling ends.
    const put = (nodes, x, depth) => {
      for (const node of nodes) {
        const w = (tree.behind[node] / whole) * width;
        this.boxes.push([node, x, depth * TREE_ROW, w]);
        put(tree.children[node], x, depth + 1);
        x += w;
      }
    };
    put(tree.roots, 0, 0);
    const height = this.boxes.reduce((most, [, , y]) => Math.max(most, y + TREE_ROW), TREE_ROW);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = prepare(this.canvas, width, height), look = this.look(pen);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const [node, x, y, w] of this.boxes) {
      const [fill, ink] = look(node);
      pen.fillStyle = fill;
      pen.fillRect(x, y, Math.max(0.6, w - (w > 3 ? 1 : 0)), TREE_ROW - 2);
      const text = count(tree.tokens(node));
      if (w > 8 + 7 * text.length) {
        pen.fillStyle = ink;
        pen.fillText(text, x + 4, y + TREE_ROW / 2 - 1);
      }
    }
    const box = this.boxes.find(([node]) => node === this.cursor);
    if (box) {
      pen.strokeStyle = style("--edge");
      pen.lineWidth = 3;
      pen.strokeRect(box[1] + 1.5, box[2] + 1.5, Math.max(1, box[3] - 4), TREE_ROW - 5);
    }
    this.tell(whole);
  }

  // The fill and the text colour of a node; also draws the legend.
  look(pen) {
    const { tree } = this, chosen = document.querySelector('input[name="tree-colour"]:checked').value;
    const key = (...marks) => byId("tree-key").replaceChildren(...marks.map(([label, fill]) => {
      const canvas = make("canvas"), swatch = prepare(canvas, 22, 14);
      swatch.fillStyle = typeof fill === "function" ? fill(swatch) : fill;
      swatch.fillRect(0, 0, 22, 14);
      return make("span", {}, canvas, label);
    }));
    if (chosen === "recency") {
      key(...RECENCY.map(([below, colour], i) =>
        [below === Infinity ? `longer ago` : `used less than ${count(below)} s ago`, colour]));
      return (node) => {
        const i = RECENCY.findIndex(([below]) => tree.idle(node) < below);
        return [RECENCY[i][1], i < 3 ? "#000" : "#fff"];
      };
    }
    const { used, cached } = STYLE.parts;
    key(["protected: a running request holds it", (on) => fillOf(on, used)], ["evictable", (on) => fillOf(on, cached)]);
    const [held, free] = [fillOf(pen, used), fillOf(pen, cached)];
    return (node) => [tree.locks[node] ? held : free, tree.locks[node] ? "#fff" : "#000"];
  }

  tell(whole) {
    const { tree } = this, { data } = tree, percent = (n) => `${digits((100 * n) / data.capacity)} %`;
    const [nodes, tokens] = data.left_out.subarray(2 * tree.at, 2 * tree.at + 2);
    const held = Array.from(tree.locks).reduce((sum, locks, node) => sum + (locks ? tree.tokens(node) : 0), 0);
    const when = data.iteration[tree.at] < 0 ? `nothing is scheduled, since ${instant(tree.clock)}`
      : `iteration ${count(data.iteration[tree.at])} at ${instant(tree.clock)}`;
    const facts = [when, `${count(tree.size + nodes)} nodes`, `${percent(held)} of the pool protected`,
      `${percent(whole - held)} evictable`];
    if (nodes) facts.push(`${count(nodes)} small nodes of ${count(tokens)} tokens are not drawn`);
    byId("tree-facts").textContent = facts.join(", ");
    this.canvas.setAttribute("aria-label", `Radix tree, ${facts.join(", ")}`);
    const largest = Array.from(tree.parent.keys()).sort((a, b) => tree.tokens(b) - tree.tokens(a)).slice(0, LARGEST);
    table(byId("tree-nodes"), ["tokens", "from", "to", "held by", "inserted by", "used,\ns ago", "inserted\nthrough it"],
      largest.map((node) => [count(tree.tokens(node)), count(tree.start[node]), count(tree.end[node]),
        tree.locks[node] ? tree.held(node) : "no request", data.names[tree.by[node]], digits(tree.idle(node)), count(tree.hits[node])]));
  }

  nodeAt(event) {
    const { left, top } = this.canvas.getBoundingClientRect(), [x, y] = [event.clientX - left, event.clientY - top];
    const box = this.boxes.find(([, from, above, w]) => x >= from && x < from + w && y >= above && y < above + TREE_ROW);
    return box ? box[0] : null;
  }

  point(node, event) {
    byId("tip").hidden = true;
    if (node === null) return;
    const lines = this.tree.describe(node);
    byId("tree-readout").textContent = `${lines.join("; ")}.`;
    if (event !== null) showTip(lines, event);
  }

  // Arrow keys select a child, the parent or a neighbouring node.
  key(event) {
    const { tree, cursor } = this;
    const beside = (step) => {
      const parent = tree.parent[cursor], all = parent < 0 ? tree.roots : tree.children[parent];
      return all[Math.max(0, Math.min(all.length - 1, all.indexOf(cursor) + step))];
    };
    const moves = {
      ArrowDown: () => (tree.children[cursor].length ? tree.children[cursor][0] : cursor),
      ArrowUp: () => (tree.parent[cursor] < 0 ? cursor : tree.parent[cursor]),
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    };
    if (!(event.key in moves) || !tree.size) return;
    event.preventDefault();
    this.cursor = cursor === null ? tree.roots[0] : moves[event.key]();
    this.draw();
    this.point(this.cursor, null);
  }
}
