// Density of every layer at the chosen epoch, with a tick where the run ends.

function layerDensities() {
  const one = run();
  if (one.path) {
    const at = one.path.densities[snapshotAt(one.path.epochs)];
    const end = one.path.densities[one.path.snapshots - 1];
    return one.path.layers.map((found, i) => ({ name: found.short, now: at[i], end: end[i], numel: found.numel }));
  }
  const at = snapshotAt(one.records.epoch);
  return Object.entries(one.densities).map(([name, values]) => ({
    name, now: values[at] ?? 0, end: values[values.length - 1] ?? 0, numel: null,
  }));
}

const densitiesSpec = {
  needs: ["run", "epoch", "layer"],
  height: () => Math.max(200, 66 + layerDensities().length * (layerDensities().length > 24 ? 15 : 24)),
  base(panel) {
    const { ctx } = panel;
    const rows = (panel.rows = layerDensities());
    const longest = Math.max(4, ...rows.map((row) => row.name.length));
    const frame = (panel.frame = frameOf(panel, Math.min(14 + longest * 6.4, panel.width * 0.34)));
    frame.top = 6;
    frame.right = panel.width - 58;
    const x = linear(0, 100, frame.left, frame.right);
    axes(ctx, frame, x, linear(0, 1, 0, 1), { xLabel: "density, % of the layer’s weights", yTicks: [] });
    const step = (frame.bottom - frame.top - 4) / Math.max(rows.length, 1);
    panel.step = step;
    rows.forEach((row, i) => {
      const y = frame.top + i * step;
      const chosen = path() && i === state.layer;
      ctx.fillStyle = colours.empty;
      ctx.fillRect(x(0), y + step * 0.18, x(100) - x(0), step * 0.64);
      ctx.fillStyle = colours.inside;
      ctx.globalAlpha = chosen || !path() ? 1 : 0.65;
      ctx.fillRect(x(0), y + step * 0.18, x(100 * row.now) - x(0), step * 0.64);
      ctx.globalAlpha = 1;
      ctx.fillStyle = colours.ink;
      ctx.fillRect(x(100 * row.end) - 1, y + step * 0.08, 2, step * 0.84);
      const how = chosen ? { colour: colours.ink, font: "600 11px" } : {};
      write(ctx, row.name.slice(-24), frame.left - 8, y + step / 2, { ...how, align: "right" });
      write(ctx, percent(row.now), frame.right + 6, y + step / 2, how);
    });
  },
  hit(panel, px, py) {
    const i = Math.floor((py - panel.frame.top) / panel.step);
    const row = panel.rows[i];
    if (!row || py < panel.frame.top) return null;
    const lines = [`now ${percent(row.now, 2)}`, `at the end ${percent(row.end, 2)}`];
    if (row.numel) lines.push(`${row.numel.toLocaleString("en")} weights`);
    return path() ? { title: row.name, lines, layer: i } : { title: row.name, lines };
  },
  legend: () => [
    { label: "in the support", colour: colours.inside, mark: "box" },
    { label: "where the run ends", colour: colours.ink, mark: "tick" },
  ],
  readout() {
    const one = run();
    const density = one.path ? one.path.density[snapshotAt(one.path.epochs)] : recordAt(one, "density");
    const epoch = one.path ? one.path.epochs[snapshotAt(one.path.epochs)] : recordEpoch(one);
    return `Epoch ${epoch}: ${percent(density, 2)} of all these weights.`;
  },
  csv() {
    const one = run();
    if (!one.path) return [["layer", "density"], ...layerDensities().map((row) => [row.name, row.now])];
    const head = ["epoch", ...one.path.layers.map((found) => found.name)];
    return [head, ...one.path.epochs.map((epoch, i) => [epoch, ...one.path.densities[i]])];
  },
};
