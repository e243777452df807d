// Filters of the chosen layer as images: W and Gamma side by side, in the order of entry.

function filterGrid(width, count) {
  const stacked = width < 520;
  const half = stacked ? width : (width - 24) / 2;
  const most = stacked ? 420 : 520;
  for (let cell = 64; cell > 18; cell -= 2) {
    const across = Math.max(Math.floor(half / (cell + 6)), 1);
    if (Math.ceil(count / across) * (cell + 6) <= most) return { cell, across, half, stacked };
  }
  return { cell: 18, across: Math.max(Math.floor(half / 24), 1), half, stacked };
}

const filtersSpec = {
  needs: ["run", "layer", "epoch", "unit"],
  choices: [ORDER],
  height(width) {
    if (!path()) return 60;
    const grid = filterGrid(width, layer().rows);
    const rows = Math.ceil(layer().rows / grid.across) * (grid.cell + 6) + 30;
    return grid.stacked ? 2 * rows : rows;
  },
  base(panel) {
    const { ctx } = panel;
    const kept = nearestKept();
    panel.cells = [];
    if (!kept || !kept.images[state.layer]) {
      write(ctx, "Not stored for this layer: the page would be too large.", 8, 40, { font: "13px" });
      return;
    }
    const p = path();
    const found = layer();
    const grid = filterGrid(panel.width, found.rows);
    const order = entryOrder(found, panel.options.order);
    const rows = Math.ceil(order.length / grid.across);
    const pitch = grid.cell + 6;
    const snapshot = snapshotAt(p.epochs, kept.epoch);
    ["W", "Gamma"].forEach((what, side) => {
      const left = grid.stacked ? 0 : side * (grid.half + 24);
      const top = grid.stacked ? side * (rows * pitch + 30) : 0;
      const title = what === "W" ? "W, the weights" : "Γ, the sparse twin";
      write(ctx, title, left + 3, top + 4, { base: "top", colour: colours.ink, font: "600 12px" });
      const sheet = atlas(kept, found, what);
      order.forEach((unit, i) => {
        const x = left + (i % grid.across) * pitch + 3;
        const y = top + 24 + Math.floor(i / grid.across) * pitch;
        const inside = p.inside[snapshot * p.rows + unit] > 0;
        drawFilter(ctx, sheet, unit - found.start, x, y, grid.cell);
        const chosen = unit === state.unit;
        ctx.strokeStyle = inside ? colours.inside : colours.outside;
        ctx.lineWidth = chosen ? 4 : 1.4;
        ctx.setLineDash(inside ? [] : [3, 2]);
        ctx.strokeRect(x - 1, y - 1, grid.cell + 2, grid.cell + 2);
        ctx.setLineDash([]);
        panel.cells.push({ x, y, size: grid.cell, unit });
      });
    });
  },
  hit(panel, px, py) {
    const cell = panel.cells.find((c) => px >= c.x - 3 && px < c.x + c.size + 3 && py >= c.y - 3 && py < c.y + c.size + 3);
    return cell ? hitUnit(cell.unit) : null;
  },
  legend: () =>
    layer().sheet.mode === "colour"
      ? []
      : [
          { label: layer().sheet.mode === "pooled" ? "large" : "negative", colour: "#6a3d9a", mark: "box" },
          { label: "zero", colour: colours.zero, mark: "box" },
          ...(layer().sheet.mode === "pooled" ? [] : [{ label: "positive", colour: "#c55a00", mark: "box" }]),
        ],
  readout() {
    const kept = nearestKept();
    if (!kept || !path()) return "";
    const where = kept.epoch === state.epoch ? `Epoch ${kept.epoch}` : `Epoch ${kept.epoch}, the kept one nearest to ${state.epoch}`;
    const epochs = path().checkpoints.map((k) => k.epoch).join(", ");
    return `${where} (kept: ${epochs}). A pixel: ${layer().sheet.words}. W and Γ each on a scale of its own, the largest 1\u00a0% saturated; frames as in the paths.`;
  },
  csv() {
    const kept = nearestKept();
    const found = layer();
    if (!kept || !kept.images[state.layer]) return [["no image is stored"]];
    const stored = kept.images[state.layer];
    const values = { W: unpack(stored.W, report.bytes), Gamma: unpack(stored.Gamma, report.bytes) };
    const size = values.W.length / found.rows;
    const value = (what, i) => +(values[what][i] * stored[what].scale).toPrecision(4);
    const rows = Array.from(values.W, (_, i) => [found.name, Math.floor(i / size), kept.epoch, i % size, value("W", i), value("Gamma", i)]);
    return [["layer", "unit", "epoch", "pixel", "W", "Gamma"], ...rows];
  },
};
