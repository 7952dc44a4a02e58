// Frames: memory states that can be wound to any instant. Each is stored as differences from the previous one.

// Why requests hold blocks without running.
const PARKED = {
  loading: "held by a request that does not run: its tokens are being loaded, or are and it waits for its turn",
  fenced: "held by a request that was aborted, until the batch in flight is over that serves it",
};

const FREE = -1, CACHED = -2, KEEP_EVERY = 40, STATE = ["owner", "place", "references"];

class Cells {
  constructor(changes, size) {
    this.changes = changes;
    this.size = size;
    this.owner = new Int32Array(size).fill(FREE);
    this.place = new Int32Array(size).fill(1);
    this.references = new Int32Array(size);
    this.at = -1;
    this.next = 0;
    this.kept = new Map(); // copies of some states, so that winding back is fast
    this.keep();
  }

  keep() { this.kept.set(this.at, { next: this.next, state: STATE.map((name) => this[name].slice()) }); }

  seek(frame) {
    const from = Math.max(...[...this.kept.keys()].filter((kept) => kept <= frame));
    if (frame < this.at || from > this.at) {
      const { next, state } = this.kept.get(from);
      STATE.forEach((name, i) => this[name].set(state[i]));
      this.at = from;
      this.next = next;
    }
    const { sizes, steps, owner, place, references } = this.changes;
    while (this.at < frame) {
      this.at += 1;
      let block = 0;
      for (const end = this.next + sizes[this.at]; this.next < end; this.next += 1) {
        block += steps[this.next];
        this.owner[block] = owner[this.next];
        this.place[block] = place[this.next];
        this.references[block] = references[this.next];
      }
      if (this.at % KEEP_EVERY === 0 && !this.kept.has(this.at)) this.keep();
    }
  }
}

class Frames {
  constructor(data) {
    this.data = data;
    this.device = new Cells(data.cells, data.drawn);
    this.swap = new Cells(data.swapped, Math.min(data.cpu_blocks, data.most_cells));
    this.lengths = new Int32Array(data.stays.final.length);
    this.needed = new Int32Array(data.stays.final.length);
    this.unit = data.page || data.block_size; // size of a block: bytes, or token slots
    this.index = Object.fromEntries(entries.flatMap(({ keys }, i) => keys.map((key) => [key, i])));
    this.starts = new Int32Array(data.clock.length + 1);
    data.present.sizes.forEach((size, i) => { this.starts[i + 1] = this.starts[i] + size; });
    this.frame = -1;
    // Range of the swap blocks that are ever used; the others are not drawn.
    let low = Infinity, high = -1, next = 0;
    for (const size of data.swapped.sizes) {
      let block = 0;
      for (let i = 0; i < size; i += 1, next += 1) {
        block += data.swapped.steps[next];
        if (data.swapped.owner[next] >= 0) { low = Math.min(low, block); high = Math.max(high, block); }
      }
    }
    this.swapRange = high < 0 ? null : [low, high + 1];
  }

  // Wind to the frame of an instant, given by number.
  seek(slot) {
    this.frame = this.data.shown[slot];
    this.device.seek(this.frame);
    this.swap.seek(this.frame);
    const { stays, lengths, needed } = this.data.present;
    for (let i = this.starts[this.frame]; i < this.starts[this.frame + 1]; i += 1) {
      this.lengths[stays[i]] = lengths[i];
      this.needed[stays[i]] = needed[i];
    }
  }

  get clock() { return this.data.clock[this.frame]; }
  get iteration() { return this.data.iteration[this.frame]; }
  get external() { return this.data.external[this.frame] === 1; }
  get counts() { return this.data.counts.subarray(3 * this.frame, 3 * this.frame + 3); }
  // The ledger in the order of `entries`; each system stores only the entries that its memory has.
  get ledger() {
    const own = this.data.entries, first = own.length * this.frame;
    const amounts = Object.fromEntries(own.map((key, i) => [key, this.data.ledger[first + i]]));
    return entries.map((entry) => amountOf(entry, amounts));
  }

  // The KV cache group of a held or cached block; null if the block is free or the cache has no groups.
  groupOf(block) {
    const owner = this.device.owner[block];
    if (!this.data.groups || owner === FREE) return null;
    return owner >= 0 ? this.data.stays.group[owner] : CACHED - owner;
  }

  // The ledger entry that says why a request holds a block without running; null if it runs.
  parkOf(owner) {
    const park = owner >= 0 ? this.data.stays.park[owner] : 0;
    return park ? this.data.parks[park - 1] : null;
  }

  // The amounts of a block's states, in the order of `entries`.
  parts(block) {
    const parts = new Array(entries.length).fill(0), owner = this.device.owner[block];
    const put = (key, amount) => { if (amount) parts[this.index[key]] += amount; };
    if (owner <= CACHED) put("cached", this.unit);
    else if (owner === FREE) put(this.external ? "external" : "free", this.unit);
    else if (this.parkOf(owner)) put(this.parkOf(owner), this.unit);
    else {
      const group = this.data.groups ? this.data.groups[this.groupOf(block)] : null;
      put("padding", group ? this.unit - group.filled : 0);
      if (group && !group.slot) put("state", group.filled);
      else this.fill(put, owner, this.device.place[block], group ? group.size : this.unit, group ? group.slot : 1);
    }
    return parts;
  }

  // Add the states of a block's slots, each weighted with `slot`: its bytes, or 1.
  fill(put, owner, place, size, slot) {
    const { final, reserved } = this.data.stays;
    const within = (end) => Math.max(0, Math.min(size, end - place * size));
    const passed = within(this.needed[owner]), filled = within(final[owner]), wanted = within(reserved[owner]);
    const used = within(Math.min(this.lengths[owner], final[owner]));
    put("used", slot * (used - passed));
    put("out_of_window", slot * passed);
    put("reserved", slot * (filled - used));
    put("unused_reservation", slot * (wanted - filled));
    put("rounding", slot * (size - wanted));
  }

  requestOf(owner) { return owner < 0 ? null : this.data.names[this.data.stays.request[owner]]; }

  // Describe a cell in words: a headline and some lines.
  describe(block) {
    const { block_size: size, stays, several, groups } = this.data, owner = this.device.owner[block];
    const title = `block ${count(block)}`, group = groups ? groups[this.groupOf(block)] : null;
    if (owner <= CACHED) {
      return [title, group ? `free; what it holds of group ${group.name} can still be found (cached)`
        : "free; its tokens can still be found (cached)"];
    }
    if (owner === FREE) {
      let first = block, last = block;
      while (first > 0 && this.device.owner[first - 1] === FREE && this.device.place[first] !== 0) first -= 1;
      while (last + 1 < this.device.size && this.device.owner[last + 1] === FREE && this.device.place[last + 1] !== 0) {
        last += 1;
      }
      const run = last - first + 1;
      return [title, this.external ? "free, but the request at the head of the queue cannot be placed (external fragmentation)" : "free",
        `in a free run of ${count(run)} ${run === 1 ? "block" : "blocks"}`];
    }
    const request = this.requestOf(owner), parts = this.parts(block), references = this.device.references[block];
    const sample = several ? `, sample ${stays.sample[owner]}` : "";
    const where = `block ${count(this.device.place[block])} of its table`;
    const lines = [`${title}: request ${request}${sample}${group ? `, group ${group.name}` : ""}`];
    const park = this.parkOf(owner);
    if (park) lines.push(`${where}, ${PARKED[park]}`);
    else if (group && !group.slot) lines.push(`${where}, a recurrent state`);
    else if (group) lines.push(`${where}, ${parts[0] / group.slot} of ${group.size} tokens attended to`);
    else lines.push(`${where}, ${parts[0]} of ${size} tokens written`);
    const rest = entries.map((e, i) => [e, parts[i]]).filter(([e, amount]) => amount && !["used", "state"].includes(e.key));
    if (rest.length && !park) {
      lines.push(rest.map(([e, amount]) => (group ? `${count(amount)} bytes ${e.label}` : `${amount} ${e.label}`)).join(", "));
    }
    lines.push(`the sequence holds ${count(this.lengths[owner])} of ${count(stays.final[owner])} tokens in the end`);
    lines.push(references > 1 ? `reference count ${references}: shared by ${references} sequences` : "reference count 1");
    return lines;
  }

  describeSwap(block) {
    const owner = this.swap.owner[block], title = `swap place ${count(block)}`;
    if (owner < 0) return [title, "free"];
    const lines = [`${title}: request ${this.requestOf(owner)}`, `block ${count(this.swap.place[block])} of its table`];
    if (this.swap.references[block] > 1) lines.push(`reference count ${this.swap.references[block]}`);
    return lines;
  }
}
