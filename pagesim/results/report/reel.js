// Reel: a film that can be wound to any of its pictures. Each is stored as what differs from the one before.

const FREE = -1, CACHED = -2, KEEP_EVERY = 40;

class Cells {
  constructor(changes, size) {
    Object.assign(this, changes);
    this.at = -1;
    this.next = 0;
    this.size = size;
    this.owner = new Int32Array(size);
    this.place = new Int32Array(size);
    this.references = new Int32Array(size);
    this.kept = new Map(); // copies on the way, so that winding back is short
    this.blank();
  }

  blank() {
    this.owner.fill(FREE);
    this.place.fill(1);
    this.references.fill(0);
    this.at = -1;
    this.next = 0;
  }

  seek(picture) {
    if (picture < this.at || picture - this.at > KEEP_EVERY) {
      const from = [...this.kept.keys()].filter((p) => p <= picture).sort((a, b) => b - a)[0];
      if (from !== undefined && (picture < this.at || from > this.at)) {
        const copy = this.kept.get(from);
        this.owner.set(copy.owner);
        this.place.set(copy.place);
        this.references.set(copy.references);
        this.at = from;
        this.next = copy.next;
      } else if (picture < this.at) {
        this.blank();
      }
    }
    while (this.at < picture) {
      this.at += 1;
      let block = 0;
      for (const end = this.next + this.sizes[this.at]; this.next < end; this.next += 1) {
        block += this.steps[this.next];
        this.owner[block] = this.changedOwner(this.next);
        this.place[block] = this.changedPlace(this.next);
        this.references[block] = this.changedReferences(this.next);
      }
      if (this.at % KEEP_EVERY === 0 && !this.kept.has(this.at)) {
        this.kept.set(this.at, {
          owner: this.owner.slice(), place: this.place.slice(), references: this.references.slice(), next: this.next,
        });
      }
    }
  }

  changedOwner(i) { return this.owners[i]; }
  changedPlace(i) { return this.places[i]; }
  changedReferences(i) { return this.counts[i]; }
}

class Reel {
  constructor(film) {
    this.film = film;
    const changes = ({ sizes, steps, owner, place, references }) =>
      ({ sizes, steps, owners: owner, places: place, counts: references });
    this.device = new Cells(changes(film.cells), film.drawn);
    this.swap = new Cells(changes(film.swapped), Math.min(film.cpu_blocks, film.most_cells));
    this.lengths = new Int32Array(film.stays.final.length);
    this.starts = new Int32Array(film.clock.length + 1);
    film.present.sizes.forEach((size, i) => { this.starts[i + 1] = this.starts[i] + size; });
    this.picture = -1;
    // The swap places that are ever taken: the others are not drawn.
    let low = Infinity, high = -1, next = 0;
    for (const size of film.swapped.sizes) {
      let block = 0;
      for (let i = 0; i < size; i += 1, next += 1) {
        block += film.swapped.steps[next];
        if (film.swapped.owner[next] >= 0) { low = Math.min(low, block); high = Math.max(high, block); }
      }
    }
    this.swapRange = high < 0 ? null : [low, high + 1];
  }

  // Wind to the picture that stands for an instant's number.
  seek(slot) {
    this.picture = this.film.shown[slot];
    this.device.seek(this.picture);
    this.swap.seek(this.picture);
    const { stays, lengths } = this.film.present;
    for (let i = this.starts[this.picture]; i < this.starts[this.picture + 1]; i += 1) {
      this.lengths[stays[i]] = lengths[i];
    }
  }

  get clock() { return this.film.clock[this.picture]; }
  get iteration() { return this.film.iteration[this.picture]; }
  get external() { return this.film.external[this.picture] === 1; }
  get counts() { return this.film.counts.subarray(3 * this.picture, 3 * this.picture + 3); }
  get ledger() { return this.film.ledger.subarray(7 * this.picture, 7 * this.picture + 7); }

  // Token slots of a block by state, in the order of `entries`.
  parts(block) {
    const size = this.film.block_size, owner = this.device.owner[block];
    if (owner === CACHED) return [0, 0, 0, 0, 0, size, 0];
    if (owner === FREE) return this.external ? [0, 0, 0, 0, size, 0, 0] : [0, 0, 0, 0, 0, 0, size];
    const start = this.device.place[block] * size, { final, reserved } = this.film.stays;
    const within = (end) => Math.max(0, Math.min(size, end - start));
    const filled = within(final[owner]), wanted = within(reserved[owner]);
    const used = within(Math.min(this.lengths[owner], final[owner]));
    return [used, filled - used, wanted - filled, size - wanted, 0, 0, 0];
  }

  requestOf(owner) { return owner < 0 ? null : this.film.names[this.film.stays.request[owner]]; }

  // What a cell is, in words: a headline and some lines.
  describe(block) {
    const { block_size: size, stays, several } = this.film, owner = this.device.owner[block];
    const title = `block ${count(block)}`;
    if (owner === CACHED) return [title, "free; its tokens can still be found (cached)"];
    if (owner === FREE) {
      let first = block, last = block;
      while (first > 0 && this.device.owner[first - 1] === FREE && this.device.place[first] !== 0) first -= 1;
      while (last + 1 < this.device.size && this.device.owner[last + 1] === FREE && this.device.place[last + 1] !== 0) {
        last += 1;
      }
      const run = last - first + 1;
      return [title, this.external ? "free, but of no use to the request at the head of the queue" : "free",
        `in a free run of ${count(run)} ${run === 1 ? "block" : "blocks"}`];
    }
    const request = this.requestOf(owner), parts = this.parts(block), references = this.device.references[block];
    const sample = several ? `, sample ${stays.sample[owner]}` : "";
    const lines = [`${title}: request ${request}${sample}`,
      `block ${count(this.device.place[block])} of its table, ${parts[0]} of ${size} tokens written`];
    const rest = entries.slice(1, 4).map((e, i) => [e, parts[i + 1]]).filter(([, slots]) => slots);
    if (rest.length) lines.push(rest.map(([e, slots]) => `${slots} ${e.label}`).join(", "));
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
