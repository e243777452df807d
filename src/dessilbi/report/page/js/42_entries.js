// Every filter of the net against epochs, coloured by when it entered.

// Small layers get more than their share, or a first layer of 16 filters could not be seen.
function bands(panel) {
  const { layers } = path();
  const { top, bottom } = panel.frame;
  const total = layers.reduce((sum, one) => sum + Math.sqrt(one.rows), 0);
  const gap = layers.length > 30 ? 1 : 3;
  const room = bottom - top - gap * (layers.length - 1);
  let y = top - gap;
  return layers.map((one) => {
    const band = { layer: one, top: y + gap, height: Math.max((room * Math.sqrt(one.rows)) / total, 1) };
    y = band.top + band.height;
    return band;
  });
}

const ORDER = { name: "order", label: "order of filters", options: [["entry", "by entry"], ["number", "by number"]] };

function entryOrder(found, by) {
  const p = path();
  const units = unitsOf(found);
  const late = (unit) => (p.entry[unit] < 0 ? Infinity : p.entry[unit]);
  return by === "number" ? units : units.sort((a, b) => late(a) - late(b) || a - b);
}

function entryImage(order) {
  const p = path();
  const colour = entryRamp();
  const empty = parts(colours.empty);
  const last = p.epochs[p.snapshots - 1] || 1;
  const own = order.map((unit) => colour((p.entryEpoch[unit] || 0) / last));
  return pixelImage(p.snapshots, order.length, (m, row) => {
    const share = p.inside[m * p.rows + order[row]] / 255;
    // Of neurons whose weights enter one by one a tint says how many have.
    return packed(share ? mix(empty, own[row], 0.35 + 0.65 * share) : empty);
  });
}

const entriesSpec = {
  choices: [ORDER],
  height: (width) => {
    const rows = path().layers.reduce((sum, one) => sum + Math.sqrt(one.rows), 0);
    return Math.max(240, Math.min(560, 130 + rows * 12, width * 1.2));
  },
  base(panel) {
    const p = path();
    const { ctx } = panel;
    const longest = Math.max(...p.layers.map((one) => one.short.length));
    const frame = (panel.frame = frameOf(panel, Math.min(24 + longest * 6.4, panel.width * 0.3)));
    frame.top = 34;
    const [first, last] = [p.epochs[0], p.epochs[p.snapshots - 1]];
    const x = (panel.scale = linear(first - 0.5, last + 0.5, frame.left, frame.right));
    panel.bands = bands(panel);
    panel.orders = panel.bands.map((band) => entryOrder(band.layer, panel.options.order));
    let labelled = -Infinity;
    panel.bands.forEach((band, i) => {
      ctx.imageSmoothingEnabled = band.height < band.layer.rows;
      ctx.drawImage(entryImage(panel.orders[i]), frame.left, band.top, frame.right - frame.left, band.height);
      const middle = band.top + band.height / 2;
      if (middle - labelled < 12) return; // names that would overlap are left to the tooltip
      labelled = middle;
      write(ctx, band.layer.short.slice(-22), frame.left - 8, middle, { align: "right" });
    });
    axes(ctx, frame, x, linear(0, 1, 0, 1), { xLabel: "epoch", yTicks: [], xTicks: epochTicks(frame, first, last) });
    const [width, left] = [120, frame.right - 148];
    const colour = entryRamp();
    ctx.drawImage(pixelImage(width, 1, (i) => packed(colour(i / width))), left, 12, width, 8);
    write(ctx, "entered at epoch 0", left - 6, 16, { align: "right" });
    write(ctx, last, left + width + 6, 16);
  },
  overlay(panel) {
    const { ctx, frame } = panel;
    const p = path();
    cursor(ctx, frame, panel.scale, p.epochs[snapshotAt(p.epochs)] + 0.5);
    const chosen = panel.bands[state.layer];
    ctx.fillStyle = colours.inside;
    ctx.fillRect(frame.left - 4, chosen.top, 3, chosen.height);
    if (state.unit === null) return;
    const band = panel.bands[p.layerOf[state.unit]];
    const row = panel.orders[band.layer.index].indexOf(state.unit);
    const y = band.top + ((row + 0.5) * band.height) / band.layer.rows;
    line(ctx, frame.left, y, frame.right, y, colours.paper, 4);
    line(ctx, frame.left, y, frame.right, y, colours.ink, 2);
  },
  hit(panel, px, py) {
    if (px < panel.frame.left - 60 || px > panel.frame.right) return null;
    const band = panel.bands.find((one) => py >= one.top && py <= one.top + one.height);
    if (!band) return null;
    const row = Math.min(Math.floor(((py - band.top) / band.height) * band.layer.rows), band.layer.rows - 1);
    return hitUnit(panel.orders[band.layer.index][row]);
  },
  readout() {
    const p = path();
    const snapshot = snapshotAt(p.epochs);
    const entered = p.entry.filter((step) => step >= 0 && step <= p.steps[snapshot]).length;
    return `Up to epoch ${p.epochs[snapshot]}: ${entered.toLocaleString("en")} of ${p.rows.toLocaleString("en")} filters and neurons entered.`;
  },
  csv() {
    const p = path();
    const rows = Array.from({ length: p.rows }, (_, unit) => {
      const found = p.layers[p.layerOf[unit]];
      const entered = p.entry[unit] < 0 ? ["", ""] : [p.entry[unit], p.entryEpoch[unit]];
      return [found.name, unit - found.start, ...entered, p.leaves[unit], p.inside[(p.snapshots - 1) * p.rows + unit] / 255];
    });
    return [["layer", "unit", "entry_step", "entry_epoch", "leaves", "share_inside_at_the_end"], ...rows];
  },
};
