// Curves against epochs: series are {label, colour, dash, x, y, wide}.

// All curves share one axis, whatever was recorded when.
const wholeRun = () => [report.epochs[0], report.epochs[report.epochs.length - 1]];

function lineScales(panel, frame, series, { floor, zoomTo } = {}) {
  const [first, last] = wholeRun();
  const x = linear(first, Math.max(last, first + 1), frame.left, frame.right);
  let [low, high] = extent(series.map((s) => s.y), panel.log);
  if (panel.log) return { x, y: logarithmic(low / 1.15, high * 1.15, frame.bottom, frame.top) };
  if (panel.zoom && zoomTo) low = Math.max(low, high - zoomTo);
  else if (floor !== undefined) low = Math.min(low, floor);
  const room = (high - low || 1) * 0.05;
  const bottom = floor !== undefined && low === floor ? floor : low - room;
  return { x, y: linear(bottom, high + room, frame.bottom, frame.top) };
}

function drawLines(ctx, frame, scales, series) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(frame.left - 4, frame.top - 4, frame.right - frame.left + 8, frame.bottom - frame.top + 8);
  ctx.clip();
  for (const one of series) {
    ctx.strokeStyle = one.colour;
    ctx.lineWidth = one.wide ? 2.4 : 1.7;
    ctx.setLineDash(one.dash || []);
    ctx.lineJoin = "round";
    polyline(ctx, one.x, one.y, scales.x, scales.y);
    if (one.x.length === 1) dot(ctx, scales.x(one.x[0]), scales.y(one.y[0]), 3, one.colour);
  }
  ctx.restore();
  ctx.setLineDash([]);
}

function drawMarks(ctx, frame, scales, series) {
  for (const one of series) {
    const at = one.x.indexOf(state.epoch);
    if (at < 0 || one.y[at] === null || !Number.isFinite(one.y[at])) continue;
    const y = scales.y(one.y[at]);
    if (y >= frame.top - 4 && y <= frame.bottom + 4) dot(ctx, scales.x(state.epoch), y, 3.5, one.colour);
  }
}

function hitLines(frame, scales, series, x, y, unit = "") {
  if (x < frame.left - 10 || x > frame.right + 10 || y < frame.top - 20 || y > frame.bottom + 20) return null;
  const wanted = scales.x.invert(x);
  const epoch = report.epochs.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
  const lines = series
    .map((one) => [one.label, one.y[one.x.indexOf(epoch)]])
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([label, value]) => `${label}: ${short(value)}${unit}`);
  return lines.length ? { title: `epoch ${epoch}`, lines, epoch } : null;
}

function linesTable(series) {
  const epochs = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const head = ["epoch", ...series.map((one) => one.label)];
  return [head, ...epochs.map((e) => [e, ...series.map((one) => one.y[one.x.indexOf(e)])])];
}

// The spec of a panel that is nothing but curves.
function curvesSpec({ series, yLabel, floor, zoomTo, zoom, unit, readout, needs = ["run"] }) {
  const scaled = (panel) => {
    panel.frame = frameOf(panel);
    panel.series = series(panel);
    panel.scales = lineScales(panel, panel.frame, panel.series, { floor, zoomTo });
  };
  return {
    needs,
    zoom,
    height: (width) => Math.max(220, Math.min(300, width * 0.62)),
    base(panel) {
      scaled(panel);
      const { x, y } = panel.scales;
      const [first, last] = wholeRun();
      const xTicks = wholeTicks(first, last, (panel.frame.right - panel.frame.left) / 60);
      axes(panel.ctx, panel.frame, x, y, { xLabel: "epoch", yLabel: yLabel(panel), xTicks });
      drawLines(panel.ctx, panel.frame, panel.scales, panel.series);
    },
    overlay(panel) {
      cursor(panel.ctx, panel.frame, panel.scales.x);
      drawMarks(panel.ctx, panel.frame, panel.scales, panel.series);
    },
    hit: (panel, x, y) => hitLines(panel.frame, panel.scales, panel.series, x, y, unit),
    legend: (panel) => panel.series,
    csv: (panel) => linesTable(panel.series),
    readout,
  };
}
