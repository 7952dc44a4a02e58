// Map: panes with a common clock, a slider, a play button and a pointer.

class MemoryMap {
  constructor(data, onTime) {
    this.data = data;
    this.onTime = onTime;
    this.systems = data.systems.filter((system) => system.frames);
    this.slot = 0;
    this.playing = null;
    this.pointed = null;
    this.by = "state";
    this.size = data.cells || byId("size").value;
    byId("size").value = this.size;
    this.panes = [];
    this.made = new Map(); // one pane per system and side, because winding frames is slow
    for (const system of data.systems.filter((each) => each.no_frames)) {
      byId("no-map").append(make("li", {}, `${system.name} has no map: ${system.no_frames}.`));
    }
    byId("map-body").hidden = !this.systems.length;
    if (!this.systems.length) return;
    const names = this.systems.map((system) => system.name);
    // A page made for a comparison shows all systems; on others the reader chooses two.
    this.choices = data.beside ? [] : ["left", "right"].map((side) => byId(side));
    this.choices.forEach((choice, k) => {
      names.forEach((name, i) => choice.append(make("option", { value: String(i) }, name)));
      if (k) choice.append(make("option", { value: "-1" }, "nothing"));
      choice.addEventListener("change", () => this.choose());
    });
    // Show the first next to the last system, usually the one of interest.
    if (!data.beside) this.choices[1].value = String(this.systems.length > 1 ? this.systems.length - 1 : -1);
    byId("left-label").hidden = data.beside;
    byId("right-label").hidden = data.beside || this.systems.length < 2;
    const slider = byId("time");
    slider.max = String(data.instants.length - 1);
    slider.addEventListener("input", () => this.seek(Number(slider.value)));
    byId("play").addEventListener("click", () => this.toggle());
    for (const radio of document.querySelectorAll('input[name="colour"]')) {
      radio.addEventListener("change", () => { this.by = radio.value; this.draw(); this.drawKey(); });
    }
    byId("by-group").hidden = !this.systems.some((system) => system.frames.groups);
    byId("size").addEventListener("change", () => { this.size = byId("size").value; this.draw(); this.drawKey(); });
    this.sayWhatIsLeftOut();
    this.choose();
    // Start halfway through the shortest run, when all systems are busy.
    const ends = this.systems.map(({ frames }) => frames.clock[frames.clock.length - 1]);
    this.seekTime((data.instants[0] + Math.min(...ends)) / 2);
  }

  sayWhatIsLeftOut() {
    const { instants } = this.data, gap = instants[1] - instants[0];
    const texts = [`${count(instants.length)} instants from ${instant(instants[0])} to ` +
      `${instant(instants[instants.length - 1])}, ${seconds(gap)} apart, each shown by the first iteration at or after ` +
      "it; what happens in between is left out (pagesim report --window START:END looks closer)."];
    for (const { name, frames } of this.systems) {
      if (frames.drawn < frames.blocks) {
        texts.push(`${name}: the first ${count(frames.drawn)} of ${count(frames.blocks)} blocks are drawn.`);
      }
    }
    byId("map-left-out").textContent = texts.join(" ");
  }

  choose() {
    const chosen = this.data.beside ? [...this.systems.keys()] : this.choices.map((choice) => Number(choice.value));
    this.panes = chosen.map((system, side) => [system, side]).filter(([i]) => i >= 0)
      .map(([i, side]) => {
        const key = `${side} ${i}`;
        if (!this.made.has(key)) this.made.set(key, new Pane(this.systems[i], this));
        return this.made.get(key);
      });
    byId("panes").replaceChildren(...this.panes.map((pane) => pane.element));
    const has = ({ entries: own, ledger }, keys) => ledger.some((amount, k) => amount && keys.includes(own[k % own.length]));
    this.shown = entries.filter(({ key, keys }) =>
      key === "free" || this.panes.some((pane) => has(pane.system.frames, keys)));
    this.seek(this.slot);
    this.drawKey();
  }

  drawKey() {
    const shares = this.panes.some((pane) => pane.system.frames.cells.references.some((n) => n > 1));
    const bySlot = this.size === "slot", extra = [];
    if (!bySlot) {
      extra.push(["a run or a table begins", (pen) => {
        pen.fillStyle = style("--free"); pen.fillRect(0, 0, 22, 14);
        pen.fillStyle = style("--edge"); pen.fillRect(10, 0, 1.5, 14);
      }]);
    }
    if (shares && !bySlot) {
      extra.push(["shared by several sequences", (pen) => {
        pen.fillStyle = colourOf(entries[0]); pen.fillRect(0, 0, 22, 14);
        pen.fillStyle = "#000"; pen.fillRect(7, 3, 8, 8);
        pen.fillStyle = "#fff"; pen.fillRect(8, 4, 6, 6);
      }]);
    }
    const swatch = (colour) => (pen) => { pen.fillStyle = colour; pen.fillRect(0, 0, 22, 14); };
    if (this.by === "group") {
      const named = this.panes.filter((pane) => pane.system.frames.groups).flatMap((pane) =>
        pane.system.frames.groups.map(({ name }, i) => [
          this.panes.length > 1 ? `${pane.system.name}: ${name}` : name, swatch(REQUEST_COLOURS[i % REQUEST_COLOURS.length])]));
      extra.unshift(...named, ["reserved, internal fragmentation or cached: paler", swatch(`${REQUEST_COLOURS[0]}55`)]);
    }
    if (this.by === "request") {
      const stripes = (faded) => (pen) => [0, 1, 2, 3].forEach((i) => {
        pen.fillStyle = REQUEST_COLOURS[i] + (faded ? "55" : "");
        pen.fillRect(i * 5.5, 0, 5.5, 14);
      });
      extra.unshift([`tokens of a request (${REQUEST_COLOURS.length} colours in turn)`, stripes(false)],
        ["held by it, without a token", stripes(true)]);
    }
    // Next to a cache with groups, one without groups shows states.
    const states = this.by === "state" || (this.by === "group" && this.panes.some((pane) => !pane.system.frames.groups));
    drawKey(byId("key"), states ? this.shown : entries.filter(({ key }) => key === "free"), extra, !bySlot);
  }

  seek(slot) {
    this.slot = Math.max(0, Math.min(this.data.instants.length - 1, slot));
    const at = this.data.instants[this.slot], slider = byId("time");
    slider.value = String(this.slot);
    slider.setAttribute("aria-valuetext", instant(at));
    byId("now").textContent = instant(at);
    for (const pane of this.panes) pane.show(this.slot);
    this.onTime(at, this.playing !== null);
  }

  // Move to the instant closest to a time in seconds.
  seekTime(at) {
    const { instants } = this.data, gap = instants[1] - instants[0];
    if (this.systems.length) this.seek(Math.round((at - instants[0]) / gap));
  }

  move(steps) { this.seek(this.slot + steps); }

  draw() { for (const pane of this.panes) pane.draw(); }

  toggle() {
    const button = byId("play");
    if (this.playing !== null) {
      cancelAnimationFrame(this.playing);
      this.playing = null;
      this.onTime(this.data.instants[this.slot], false);
    } else {
      if (this.slot === this.data.instants.length - 1) this.seek(0);
      let last = performance.now();
      const turn = (now) => {
        const wait = 1000 / Number(byId("speed").value), due = Math.floor((now - last) / wait);
        this.playing = requestAnimationFrame(turn);
        if (due > 0) {
          last += due * wait;
          this.move(due);
        }
        if (this.slot === this.data.instants.length - 1) this.toggle();
      };
      this.playing = requestAnimationFrame(turn);
    }
    button.textContent = this.playing === null ? "▶ Play" : "❚❚ Pause";
    button.setAttribute("aria-pressed", String(this.playing !== null));
  }

  point(request, lines, event) {
    byId("readout").textContent = `${lines.join("; ")}.`;
    if (event === null) byId("tip").hidden = true;
    else showTip(lines, event);
    if (event === null || request !== this.pointed) {
      this.pointed = request;
      this.draw();
    }
  }

  leave() {
    byId("tip").hidden = true;
    if (this.pointed !== null) {
      this.pointed = null;
      this.draw();
    }
  }
}
