// The paper's Figure 1: the norm of every filter of a layer, blue inside the support, red outside.

const MANY_LINES = 128; // beyond which dashes cannot be seen any more and cost time

const SYMBOLS = { W: "W", Gamma: "Γ", V: "V" };

function pathScales(panel) {
  const p = path();
  const found = layer();
  const values = p[panel.options.norm];
  const frame = (panel.frame = frameOf(panel));
  const x = linear(p.epochs[0], Math.max(p.epochs[p.snapshots - 1], p.epochs[0] + 1), frame.left, frame.right);
  const lists = p.epochs.map((_, m) => values.subarray(m * p.rows + found.start, m * p.rows + found.start + found.rows));
  const [low, high] = extent(lists, panel.log);
  const y = panel.log
    ? logarithmic(Math.max(low / 1.15, high * 1e-5), high * 1.15, frame.bottom, frame.top)
    : linear(0, high * 1.04 || 1, frame.bottom, frame.top);
  panel.scales = { x, y };
}

// Stretches of a filter's line that lie inside (or outside) the support, as one canvas path. Between
// two snapshots the colour is that of the second, but for the first entry, whose step is known.
function tracePath(ctx, panel, unit, inside) {
  const p = path();
  const { x, y } = panel.scales;
  const values = p[panel.options.norm];
  const entry = p.entryEpoch[unit];
  let open = false;
  for (let m = 1; m < p.snapshots; m++) {
    const [from, to] = [p.epochs[m - 1], p.epochs[m]];
    const now = p.inside[m * p.rows + unit] > 0;
    const enters = now && entry > from && entry < to && layer().exact;
    if (now !== inside && !(enters && !inside)) {
      open = false;
      continue;
    }
    const split = enters ? [entry, valueAtEpoch(unit, entry, values)] : null;
    const start = split && inside ? split : [from, values[(m - 1) * p.rows + unit]];
    const end = split && !inside ? split : [to, values[m * p.rows + unit]];
    if (!open) ctx.moveTo(x(start[0]), y(start[1]));
    ctx.lineTo(x(end[0]), y(end[1]));
    open = !split || inside;
  }
}

function strokePaths(panel, units, width, alpha, dashes) {
  const ctx = panel.ctx;
  ctx.globalAlpha = alpha;
  ctx.lineJoin = "round";
  for (const inside of [false, true]) {
    ctx.strokeStyle = inside ? colours.inside : colours.outside;
    ctx.lineWidth = width;
    ctx.setLineDash(inside || !dashes ? [] : [4, 3]);
    ctx.beginPath();
    for (const unit of units) tracePath(ctx, panel, unit, inside);
    ctx.stroke();
  }
  ctx.setLineDash([]);
  ctx.globalAlpha = 1;
}

function valueAtEpoch(unit, epoch, values) {
  const p = path();
  const m = Math.min(snapshotAt(p.epochs, epoch), Math.max(p.snapshots - 2, 0));
  const next = Math.min(m + 1, p.snapshots - 1);
  const share = next === m ? 0 : (epoch - p.epochs[m]) / (p.epochs[next] - p.epochs[m]);
  const a = values[m * p.rows + unit];
  return a + (values[next * p.rows + unit] - a) * Math.min(Math.max(share, 0), 1);
}

function markEntry(panel, unit, radius) {
  const p = path();
  const epoch = p.entryEpoch[unit];
  if (Number.isNaN(epoch)) return;
  const value = valueAtEpoch(unit, epoch, p[panel.options.norm]);
  if (panel.log && value <= 0) return;
  dot(panel.ctx, panel.scales.x(epoch), panel.scales.y(value), radius, colours.inside, false);
}

const pathsSpec = {
  needs: ["run", "layer"],
  choices: [
    { name: "norm", label: "which norm", options: [["W", "norm of W"], ["Gamma", "norm of Γ"], ["V", "norm of V"]] },
  ],
  height: (width) => Math.max(280, Math.min(420, width * 0.5)),
  base(panel) {
    pathScales(panel);
    const units = layerUnits();
    const few = units.length <= MANY_LINES;
    const p = path();
    axes(panel.ctx, panel.frame, panel.scales.x, panel.scales.y, {
      xLabel: "epoch",
      yLabel: `norm of the ${layer().word}, ‖${SYMBOLS[panel.options.norm]}‖`,
      xTicks: epochTicks(panel.frame, p.epochs[0], p.epochs[p.snapshots - 1]),
    });
    strokePaths(panel, units, few ? 1.3 : 0.8, few ? 0.85 : 0.55, few);
    for (const unit of units) markEntry(panel, unit, few ? 3 : 1.6);
  },
  overlay(panel) {
    const { ctx } = panel;
    cursor(ctx, panel.frame, panel.scales.x);
    const unit = state.unit;
    if (unit === null || path().layerOf[unit] !== state.layer) return;
    ctx.strokeStyle = colours.paper; // a halo, so that the line stands out
    ctx.lineWidth = 7;
    ctx.beginPath();
    tracePath(ctx, panel, unit, false);
    tracePath(ctx, panel, unit, true);
    ctx.stroke();
    strokePaths(panel, [unit], 3.2, 1, true);
    markEntry(panel, unit, 5);
    const p = path();
    const last = p[panel.options.norm][(p.snapshots - 1) * p.rows + unit];
    write(ctx, `${layer().word} ${unit - layer().start}`, panel.frame.right - 4, panel.scales.y(last) - 8, {
      align: "right", base: "alphabetic", colour: colours.ink, font: "600 12px",
    });
  },
  hit(panel, px, py) {
    const { frame } = panel;
    if (px < frame.left - 4 || px > frame.right + 8 || py < frame.top - 8 || py > frame.bottom + 8) return null;
    const epoch = panel.scales.x.invert(px);
    let best = null;
    let distance = 18;
    for (const unit of layerUnits()) {
      const gap = Math.abs(panel.scales.y(valueAtEpoch(unit, epoch, path()[panel.options.norm])) - py);
      if (gap < distance) [best, distance] = [unit, gap];
    }
    return best === null ? null : hitUnit(best);
  },
  legend: () => [
    { label: "in the support of Γ", colour: colours.inside, dash: [] },
    { label: "outside", colour: colours.outside, dash: layer().rows <= MANY_LINES ? [4, 3] : [] },
    { label: layer().exact ? "entry, to the step" : "first weight seen", colour: colours.inside, mark: "ring" },
  ],
  readout() {
    const p = path();
    const found = layer();
    const snapshot = snapshotAt(p.epochs);
    const inside = layerUnits().filter((unit) => p.inside[snapshot * p.rows + unit] > 0).length;
    const weights = found.exact ? "" : " have weights";
    return `${found.short}, epoch ${p.epochs[snapshot]}: ${inside} of ${found.rows} ${found.word}s${weights || " are"} in the support.`;
  },
  csv(panel) {
    const p = path();
    const head = ["layer", "unit", "epoch", `norm_${panel.options.norm}`, "share_inside", "entry_step"];
    const row = (unit, m) => [
      layer().name, unit - layer().start, p.epochs[m], p[panel.options.norm][m * p.rows + unit],
      p.inside[m * p.rows + unit] / 255, p.entry[unit] < 0 ? "" : p.entry[unit],
    ];
    return [head, ...layerUnits().flatMap((unit) => p.epochs.map((_, m) => row(unit, m)))];
  },
};
