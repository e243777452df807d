// A panel: two canvases over each other. The lower one holds what does not depend on the epoch and
// is drawn rarely; the upper one the cursor and what is highlighted. A spec says how:
//   needs      names in `state` that the lower canvas depends on, by default the run
//   height     of the panel, given its width; there is a usual one
//   base, overlay   draw; `this`-less, given the panel
//   hit        what lies under a pixel: {title, lines, unit, epoch}
//   legend, readout, csv    what it says beside the picture
//   choices    selections of its own, [{name, label, options: [[value, text]]}]
//   zoom       label of a box that narrows an axis

class Panel {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.key = figure.dataset.key;
    this.title = figure.querySelector("h2").textContent;
    this.log = figure.dataset.log === "2";
    this.zoom = false;
    this.options = {};
    this.readout = element("p", { className: "readout" });
    this.legend = element("div", { className: "legend" });
    this.base = element("canvas", { role: "img", ariaLabel: this.title });
    this.overlay = element("canvas", { role: "presentation" });
    this.plot = element("div", { className: "plot" }, this.base, this.overlay);
    this.plot.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.addEventListener("pointerleave", () => tooltip.hide());
    this.plot.addEventListener("click", (event) => this.click(event));
    figure.append(element("div", { className: "tools" }, ...this.tools()), this.readout, this.legend, this.plot);
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  tools() {
    const button = (kind, onclick) => element("button", { type: "button", ariaLabel: `${this.title}: save as ${kind}`, onclick }, kind);
    return [
      ...(this.spec.choices || []).map((choice) => this.choice(choice)),
      ...(this.figure.dataset.log !== "0" ? [this.box("log", "log axis")] : []),
      ...(this.spec.zoom ? [this.box("zoom", this.spec.zoom)] : []),
      button("PNG", () => savePicture(this, this.file())),
      button("CSV", () => saveTable(this.spec.csv(this), this.file())),
    ];
  }

  box(name, words) {
    const onchange = (event) => {
      this[name] = event.target.checked;
      this.draw();
    };
    return element("label", {}, element("input", { type: "checkbox", name, checked: this[name], onchange }), words);
  }

  choice({ name, label, options }) {
    this.options[name] = options[0][0];
    const onchange = (event) => {
      this.options[name] = event.target.value;
      this.draw();
    };
    const entries = options.map(([value, text]) => new Option(text, value));
    return element("select", { name, ariaLabel: `${this.title}: ${label}`, onchange }, ...entries);
  }

  file() {
    return `${run().name}-${this.key}`.replace(/[^\w.-]+/g, "_");
  }

  resize() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width || width === this.width) return;
    this.draw();
  }

  fit() {
    this.width = Math.floor(this.plot.clientWidth) || 600;
    this.height = Math.round((this.spec.height || HEIGHT)(this.width));
    const ratio = Math.min(devicePixelRatio || 1, 2);
    this.plot.style.height = `${this.height}px`;
    for (const canvas of [this.base, this.overlay]) {
      const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
      if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
      canvas.style.height = `${this.height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
  }

  update(what) {
    if (what.has("all") || (this.spec.needs || ["run"]).some((name) => what.has(name))) this.draw();
    else if (["epoch", "unit", "layer"].some((name) => what.has(name))) this.drawOverlay();
  }

  draw() {
    this.fit();
    const ctx = this.base.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    this.paint(ctx, "base");
    this.drawLegend();
    this.drawOverlay();
  }

  drawOverlay() {
    const ctx = this.overlay.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    this.paint(ctx, "overlay");
    this.readout.textContent = this.spec.readout(this);
  }

  paint(ctx, which) {
    this.ctx = ctx;
    ctx.save();
    if (this.spec[which]) this.spec[which](this);
    ctx.restore();
  }

  drawLegend() {
    const entries = this.spec.legend ? this.spec.legend(this) : [];
    this.legend.replaceChildren(
      ...entries.map(({ label, colour, dash, mark }) => {
        const line = !dash || !dash.length ? "solid" : dash[0] > 2 ? "dashed" : "dotted";
        const swatch = element("i", { className: mark && mark !== "dot" ? mark : line });
        swatch.style.color = colour;
        return element("span", {}, swatch, label);
      })
    );
  }

  find(event) {
    if (!this.spec.hit) return null;
    const box = this.plot.getBoundingClientRect();
    return this.spec.hit(this, event.clientX - box.left, event.clientY - box.top);
  }

  hover(event) {
    const found = this.find(event);
    this.plot.style.cursor = found && (found.unit !== undefined || found.epoch !== undefined) ? "pointer" : "";
    if (found) tooltip.show(found, event.clientX, event.clientY);
    else tooltip.hide();
  }

  click(event) {
    const found = this.find(event);
    if (!found) return;
    if (found.unit !== undefined) selectUnit(found.unit);
    else if (found.layer !== undefined) change({ layer: found.layer, unit: null });
    else if (found.epoch !== undefined) change({ epoch: found.epoch });
  }
}
