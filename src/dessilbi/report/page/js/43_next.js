// Who is next: ||V_g|| against lambd, filter by filter; of single weights a histogram. Of tied
// filters, which enter together, V_g is that of all of them.

function ratios() {
  const p = path();
  const snapshot = snapshotAt(p.epochs);
  return layerUnits()
    .map((unit) => ({
      unit,
      ratio: p.joint[snapshot * p.rows + unit] / p.threshold[unit],
      inside: p.inside[snapshot * p.rows + unit] > 0,
    }))
    .sort((a, b) => b.ratio - a.ratio);
}

// The filter of the whole net that is outside and nearest to its threshold.
function nextOfAll() {
  const p = path();
  const at = snapshotAt(p.epochs) * p.rows;
  let best = null;
  let largest = 0;
  for (let unit = 0; unit < p.rows; unit++) {
    if (p.inside[at + unit] || !(p.threshold[unit] > 0)) continue;
    const ratio = p.joint[at + unit] / p.threshold[unit];
    if (ratio > largest) [best, largest] = [unit, ratio];
  }
  return best === null ? null : { unit: best, ratio: largest };
}

function drawRatios(panel) {
  const { ctx, frame } = panel;
  const bars = (panel.bars = ratios());
  const highest = Math.max(1.15, ...bars.map((bar) => bar.ratio * 1.05).filter(Number.isFinite));
  const x = (panel.x = linear(0, bars.length, frame.left, frame.right));
  const y = linear(0, highest, frame.bottom, frame.top);
  axes(ctx, frame, x, y, {
    xLabel: `${layer().word}s of ${layer().short}, the nearest first`, yLabel: layer().partners.length ? "joint ‖V‖ / λ" : "‖V‖ / λ", xTicks: [],
  });
  const width = x(1) - x(0);
  bars.forEach((bar, i) => {
    ctx.fillStyle = bar.inside ? colours.inside : colours.outside;
    ctx.globalAlpha = state.unit === null || state.unit === bar.unit ? 1 : 0.35;
    ctx.fillRect(x(i) + width * 0.12, y(bar.ratio), Math.max(width * 0.76, 0.6), frame.bottom - y(bar.ratio));
    ctx.globalAlpha = 1;
    if (width > 13) write(ctx, bar.unit - layer().start, x(i + 0.5), frame.bottom + 4, { align: "center", base: "top", font: "10px" });
  });
  line(ctx, frame.left, y(1), frame.right, y(1), colours.ink, 1.5);
  label(ctx, "enters above λ", frame.right, y(1) - 4);
}

function label(ctx, text, right, bottom) {
  const how = { align: "right", base: "bottom", colour: colours.ink, font: "600 11px" };
  write(ctx, text, right, bottom, how);
  [ctx.lineWidth, ctx.strokeStyle] = [4, colours.paper];
  ctx.strokeText(text, right, bottom);
  write(ctx, text, right, bottom, how);
}

function drawHistogram(panel, counts) {
  const { ctx, frame } = panel;
  const { count, highest } = report.bins;
  const x = linear(0, highest, frame.left, frame.right);
  const y = logarithmic(0.7, Math.max(...counts, 10) * 1.4, frame.bottom, frame.top);
  axes(ctx, frame, x, y, { xLabel: "|V| / λ of single weights; the last bar: all above", yLabel: "weights" });
  counts.forEach((n, i) => {
    if (!n) return;
    ctx.fillStyle = (i + 0.5) * (highest / count) > 1 ? colours.inside : colours.outside;
    ctx.fillRect(x((i * highest) / count) + 0.5, y(n), x(highest / count) - x(0) - 1, frame.bottom - y(n));
  });
  line(ctx, x(1), frame.top, x(1), frame.bottom, colours.ink, 1.5);
  label(ctx, "λ", x(1) - 4, frame.top + 14);
}

function histogram() {
  const kept = nearestKept();
  return kept && kept.histograms[state.layer] ? { epoch: kept.epoch, counts: kept.histograms[state.layer] } : null;
}

const nextSpec = {
  needs: ["run", "layer", "epoch", "unit"],
  base(panel) {
    panel.frame = frameOf(panel);
    panel.bars = null;
    if (layer().exact && path().threshold[layer().start] > 0) return drawRatios(panel);
    const found = histogram();
    if (found) return drawHistogram(panel, found.counts);
    const why = layer().exact ? "No thresholds were recorded." : "No epoch was kept (--keep) to look at single weights.";
    return write(panel.ctx, why, 12, 60, { font: "13px" });
  },
  hit(panel, px, py) {
    if (!panel.bars || py < panel.frame.top - 10 || py > panel.frame.bottom + 18) return null;
    const bar = panel.bars[Math.floor(panel.x.invert(px))];
    return bar ? hitUnit(bar.unit) : null;
  },
  legend: () => [
    { label: "in the support", colour: colours.inside, mark: "box" },
    { label: "outside", colour: colours.outside, mark: "box" },
  ],
  readout(panel) {
    if (!panel.bars && layer().exact) return "";
    if (!panel.bars) {
      const found = histogram();
      return found
        ? `Weights of ${layer().short} enter one by one; shown is the kept epoch ${found.epoch}.`
        : `Weights of ${layer().short} enter one by one.`;
    }
    const waiting = panel.bars.filter((bar) => !bar.inside && bar.ratio > 0).slice(0, 3);
    const all = nextOfAll();
    const names = waiting.map((bar) => `${bar.unit - layer().start} (${percent(bar.ratio, 0)} of λ)`);
    const tied = layer().partners.length ? ` They enter with those of ${partnerNames(layer())}.` : "";
    // Under a mask, or before the first step, V is zero: nobody waits, and yet not all are in.
    const none = panel.bars.every((bar) => bar.inside) ? `All of ${layer().short} are in.` : `Nobody else of ${layer().short} is on the way.`;
    const here = names.length ? `Next in ${layer().short}: ${names.join(", ")}.` : none;
    return all && path().layerOf[all.unit] !== state.layer
      ? `${here}${tied} In the whole net: ${unitName(all.unit)} (${percent(all.ratio, 0)}).`
      : here + tied;
  },
  csv(panel) {
    if (panel.bars) {
      const epoch = path().epochs[snapshotAt(path().epochs)];
      const rows = panel.bars.map((bar) => [layer().name, bar.unit - layer().start, epoch, bar.ratio, +bar.inside]);
      return [["layer", "unit", "epoch", "norm_V_over_lambd", "inside"], ...rows];
    }
    const found = histogram();
    const width = report.bins.highest / report.bins.count;
    return [["abs_V_over_lambd_from", "weights"], ...(found ? found.counts.map((n, i) => [i * width, n]) : [])];
  },
};
