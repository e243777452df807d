// Every filter of the net against epochs, coloured by when it entered.

// Small layers get more than their share, or a first layer of 16 filters could not be seen.
function bands(panel) {
  const p = path();
  const { top, bottom } = panel.frame;
  const weights = p.layers.map((one) => Math.sqrt(one.rows));
  const total = weights.reduce((a, b) => a + b, 0);
  const gap = p.layers.length > 30 ? 1 : 3;
  const room = bottom - top - gap * (p.layers.length - 1);
  let y = top;
  return p.layers.map((one, i) => {
    const height = Math.max((room * weights[i]) / total, 1);
    const band = { layer: one, top: y, height };
    y += height + gap;
    return band;
  });
}

function entryOrder(found, by) {
  const p = path();
  const units = Array.from({ length: found.rows }, (_, i) => found.start + i);
  if (by === "number") return units;
  const late = (unit) => (p.entry[unit] < 0 ? Infinity : p.entry[unit]);
  return units.sort((a, b) => late(a) - late(b) || a - b);
}

function entryImage(order) {
  const p = path();
  const canvas = document.createElement("canvas");
  canvas.width = p.marks;
  canvas.height = order.length;
  const ctx = canvas.getContext("2d");
  const image = ctx.createImageData(p.marks, order.length);
  const colour = entryRamp();
  const empty = parts(colours.empty);
  const last = p.epochs[p.marks - 1] || 1;
  order.forEach((unit, row) => {
    const rgb = Number.isNaN(p.entryEpoch[unit]) ? empty : colour(p.entryEpoch[unit] / last);
    for (let m = 0; m < p.marks; m++) {
      const to = (row * p.marks + m) * 4;
      const share = p.inside[m * p.rows + unit] / 255;
      // Of neurons whose weights enter one by one a tint says how many have.
      const tint = share ? 0.35 + 0.65 * share : 0;
      for (let k = 0; k < 3; k++) image.data[to + k] = empty[k] + (rgb[k] - empty[k]) * tint;
      image.data[to + 3] = 255;
    }
  });
  ctx.putImageData(image, 0, 0);
  return canvas;
}

const entriesSpec = {
  needs: ["run"],
  choices: [{ name: "order", label: "order of filters", options: [["entry", "by entry"], ["number", "by number"]] }],
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
    const first = p.epochs[0] - 0.5;
    const x = (panel.scale = linear(first, p.epochs[p.marks - 1] + 0.5, frame.left, frame.right));
    panel.bands = bands(panel);
    panel.orders = panel.bands.map((band) => entryOrder(band.layer, panel.options.order));
    let labelled = -Infinity;
    panel.bands.forEach((band, i) => {
      const image = entryImage(panel.orders[i]);
      ctx.imageSmoothingEnabled = band.height < band.layer.rows;
      ctx.drawImage(image, x(first), band.top, x(p.epochs[p.marks - 1] + 0.5) - x(first), band.height);
      const middle = band.top + band.height / 2;
      if (middle - labelled < 12) return; // names that would overlap are left to the tooltip
      labelled = middle;
      ctx.font = `11px ${colours.font}`;
      ctx.fillStyle = colours.muted;
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(band.layer.short.slice(-22), frame.left - 8, middle);
    });
    const xTicks = wholeTicks(p.epochs[0], p.epochs[p.marks - 1], (frame.right - frame.left) / 60);
    axes(ctx, frame, x, linear(0, 1, 0, 1), { xLabel: "epoch", yTicks: [], xTicks });
    this.key(panel, p);
  },
  key(panel, p) {
    const { ctx, frame } = panel;
    const width = 120;
    const left = frame.right - width - 28;
    const colour = entryRamp();
    for (let i = 0; i < width; i++) {
      ctx.fillStyle = css(colour(i / width));
      ctx.fillRect(left + i, 12, 1.5, 8);
    }
    ctx.font = `11px ${colours.font}`;
    ctx.fillStyle = colours.muted;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    ctx.fillText("entered at epoch 0", left - 6, 16);
    ctx.textAlign = "left";
    ctx.fillText(String(p.epochs[p.marks - 1]), left + width + 6, 16);
  },
  overlay(panel) {
    const { ctx, frame } = panel;
    const p = path();
    cursor(ctx, frame, panel.scale, p.epochs[markAt(p.epochs)] + 0.5);
    const chosen = panel.bands[state.layer];
    ctx.fillStyle = colours.inside;
    ctx.fillRect(frame.left - 4, chosen.top, 3, chosen.height);
    if (state.unit === null) return;
    const band = panel.bands[p.layerOf[state.unit]];
    const row = panel.orders[band.layer.index].indexOf(state.unit);
    const y = band.top + ((row + 0.5) * band.height) / band.layer.rows;
    ctx.strokeStyle = colours.paper;
    ctx.lineWidth = 4;
    line(ctx, frame.left, y, frame.right, y);
    ctx.strokeStyle = colours.ink;
    ctx.lineWidth = 2;
    line(ctx, frame.left, y, frame.right, y);
  },
  hit(panel, px, py) {
    if (px < panel.frame.left - 60 || px > panel.frame.right) return null;
    const band = panel.bands.find((one) => py >= one.top && py <= one.top + one.height);
    if (!band) return null;
    const row = Math.min(Math.floor(((py - band.top) / band.height) * band.layer.rows), band.layer.rows - 1);
    const unit = panel.orders[band.layer.index][row];
    return { title: unitName(unit), lines: unitLines(unit), unit };
  },
  readout() {
    const p = path();
    const until = p.steps[markAt(p.epochs)];
    const entered = p.entry.filter((step) => step >= 0 && step <= until).length;
    return `Up to epoch ${p.epochs[markAt(p.epochs)]}: ${entered.toLocaleString("en")} of ${p.rows.toLocaleString("en")} filters and neurons entered.`;
  },
  csv() {
    const p = path();
    const rows = [["layer", "unit", "entry_step", "entry_epoch", "leaves", "share_inside_at_the_end"]];
    for (let unit = 0; unit < p.rows; unit++) {
      const found = p.layers[p.layerOf[unit]];
      const never = p.entry[unit] < 0;
      rows.push([
        found.name, unit - found.start, never ? "" : p.entry[unit], never ? "" : p.entryEpoch[unit],
        p.leaves[unit], p.inside[(p.marks - 1) * p.rows + unit] / 255,
      ]);
    }
    return rows;
  },
};
