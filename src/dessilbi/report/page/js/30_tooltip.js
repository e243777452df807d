// One tooltip for all panels; for a filter it shows the filter.

const tooltip = {
  element: null,

  make() {
    this.title = element("strong");
    this.body = element("div");
    this.pictures = element("canvas");
    this.element = element("div", { className: "tooltip", role: "status" }, this.title, this.body, this.pictures);
    document.body.append(this.element);
  },

  show(found, x, y) {
    this.title.textContent = found.title;
    this.body.textContent = found.lines.join("\n");
    this.picture(found.unit);
    const box = this.element;
    box.classList.add("on");
    const left = Math.min(x + 14, innerWidth - box.offsetWidth - 8);
    const above = y + 16 + box.offsetHeight > innerHeight - 8;
    box.style.left = `${Math.max(left, 8)}px`;
    box.style.top = `${Math.max(above ? y - box.offsetHeight - 12 : y + 16, 8)}px`;
  },

  picture(unit) {
    const canvas = this.pictures;
    canvas.hidden = true;
    if (unit === undefined || unit === null) return;
    const kept = nearestKept();
    const found = path().layers[path().layerOf[unit]];
    if (!kept || !kept.images[found.index]) return;
    canvas.hidden = false;
    const size = 84;
    const ratio = Math.max(devicePixelRatio || 1, 1);
    canvas.width = (2 * size + 8) * ratio;
    canvas.height = (size + 15) * ratio;
    canvas.style.width = `${2 * size + 8}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ["W", "Gamma"].forEach((what, i) => {
      write(ctx, i ? "Γ" : `W, epoch ${kept.epoch}`, i * (size + 8), 10, { base: "alphabetic" });
      drawFilter(ctx, atlas(kept, found, what), unit - found.start, i * (size + 8), 15, size);
    });
  },

  hide() {
    this.element.classList.remove("on");
  },
};
