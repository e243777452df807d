// Panels of curves and points, as charts.py describes them.

const DASHES = { solid: [], dashed: [6, 3], dotted: [2, 3], none: [] };

// All curves against epochs share one axis, whatever was recorded when.
const wholeRun = () => [report.epochs[0], report.epochs[report.epochs.length - 1]];

function seriesOf(chart, ofARun) {
  return chart.series
    .filter((one) => !ofARun || one.run === state.run)
    .map((one) => ({
      ...one, colour: colours[one.colour], dash: DASHES[one.dash], joined: one.dash !== "none",
      wide: !ofARun && report.runs.length > 1 && one.run === state.run,
    }));
}

function chartScales(panel, chart, series, frame) {
  const isLog = (axis) => panel.log && chart.log === axis;
  const axis = (lists, name, from, to) => {
    let [low, high] = extent(lists, isLog(name));
    if (isLog(name)) return logarithmic(low / 1.15, high * 1.15, from, to);
    const floor = name === "x" ? 0 : chart.floor;
    if (name === "y" && panel.zoom) low = Math.max(low, high - chart.zoom);
    const room = (high - low || 1) * 0.05;
    return linear(floor === null ? low - room : Math.min(low, floor), high + room, from, to);
  };
  const [first, last] = wholeRun();
  const { left, right, top, bottom } = frame;
  const x = chart.xlabel === "epoch" ? linear(first, Math.max(last, first + 1), left, right) : axis(series.map((s) => s.x), "x", left, right);
  return { x, y: axis(series.map((s) => s.y), "y", bottom, top) };
}

function drawSeries(ctx, { frame, series, scales: { x, y } }) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(frame.left - 6, frame.top - 6, frame.right - frame.left + 12, frame.bottom - frame.top + 12);
  ctx.clip();
  for (const one of series) {
    ctx.strokeStyle = one.colour;
    ctx.lineWidth = one.wide ? 2.4 : 1.7;
    ctx.lineJoin = "round";
    ctx.setLineDash(one.dash);
    if (one.joined) polyline(ctx, one.x, one.y, x, y);
    ctx.setLineDash([]);
    if (one.mark === "square") {
      ctx.lineWidth = 2;
      one.x.forEach((value, i) => ctx.strokeRect(x(value) - 6, y(one.y[i]) - 6, 12, 12));
    } else if (one.mark || one.x.length === 1) {
      one.x.forEach((value, i) => dot(ctx, x(value), y(one.y[i]), one.mark === "dot" ? 2.2 : 3.6, one.colour));
    }
  }
  ctx.restore();
}

// Where the curves are at the chosen epoch; a run may have ended before.
function drawChosen(ctx, { frame, chart, series, scales: { x, y } }) {
  const overEpochs = chart.xlabel === "epoch";
  if (overEpochs) cursor(ctx, frame, x);
  for (const one of series) {
    const at = overEpochs ? one.x.indexOf(state.epoch) : (one.epochs || []).findLastIndex((e) => e <= state.epoch);
    if (at < 0 || one.y[at] === null) continue;
    const height = y(one.y[at]);
    if (height < frame.top - 4 || height > frame.bottom + 4) continue;
    dot(ctx, x(one.x[at]), height, overEpochs ? 3.5 : 5.5, overEpochs ? one.colour : colours.ink);
  }
}

function valuesAt(series, epoch, unit) {
  return series
    .map((one) => [one.label, one.y[one.x.indexOf(epoch)] ?? null])
    .filter(([, value]) => value !== null)
    .map(([label, value]) => `${label}: ${short(value)}${unit}`);
}

function hitChart({ frame, chart, series, scales }, px, py) {
  if (px < frame.left - 10 || px > frame.right + 10 || py < frame.top - 20 || py > frame.bottom + 20) return null;
  if (chart.xlabel === "epoch") {
    const wanted = scales.x.invert(px);
    const epoch = report.epochs.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
    const lines = valuesAt(series, epoch, chart.unit);
    return lines.length ? { title: `epoch ${epoch}`, lines, epoch } : null;
  }
  let best = null;
  let distance = 16;
  for (const one of series) {
    one.x.forEach((value, i) => {
      const gap = Math.hypot(scales.x(value) - px, scales.y(one.y[i]) - py);
      if (gap > distance) return;
      distance = gap;
      best = { title: one.label, lines: one.words[i], epoch: one.epochs ? one.epochs[i] : undefined };
    });
  }
  return best;
}

// A column a curve; of points a row each.
function chartTable(parts) {
  const { chart } = parts[0];
  if (chart.xlabel !== "epoch") {
    const rows = parts[0].series.flatMap((one) => one.x.map((x, i) => [one.label, x, one.y[i], one.words[i].join("; ")]));
    return [["series", chart.xlabel, "accuracy", "details"], ...rows];
  }
  const columns = parts.flatMap((part) =>
    part.series.map((one) => ({
      label: parts.length > 1 ? `${part.chart.title}: ${one.label}` : one.label,
      values: new Map(one.x.map((x, i) => [x, one.y[i]])),
    }))
  );
  const epochs = [...new Set(columns.flatMap((one) => [...one.values.keys()]))].sort((a, b) => a - b);
  return [["epoch", ...columns.map((one) => one.label)], ...epochs.map((e) => [e, ...columns.map((one) => one.values.get(e))])];
}

function chartSpec({ charts, alternatives, of_a_run: ofARun }) {
  const shown = (panel) => (alternatives ? [charts[+panel.options.which]] : charts);
  const beside = (width) => width >= 520 || alternatives || charts.length === 1;
  return {
    zoom: charts[0].zoom && `top ${charts[0].zoom} points`,
    choices: alternatives ? [{ name: "which", label: "measure of size", options: charts.map((chart, i) => [String(i), chart.title]) }] : [],
    height: (width) => (charts.length === 1 || alternatives ? HEIGHT(width) : beside(width) ? 220 : 170 * charts.length),
    base(panel) {
      const found = shown(panel);
      const across = beside(panel.width) ? found.length : 1;
      const [width, height] = [panel.width / across, (panel.height * across) / found.length];
      panel.parts = found.map((chart, i) => {
        const [left, top] = across === 1 ? [0, i * height] : [i * width, 0];
        const frame = { left: left + 46, top: top + 24, right: left + width - 12, bottom: top + height - 34 };
        const series = seriesOf(chart, ofARun);
        return { chart, series, frame, scales: chartScales(panel, chart, series, frame) };
      });
      for (const part of panel.parts) {
        const { x, y } = part.scales;
        const xTicks = part.chart.xlabel === "epoch" ? epochTicks(part.frame, ...wholeRun()) : undefined;
        axes(panel.ctx, part.frame, x, y, { xLabel: part.chart.xlabel, yLabel: part.chart.ylabel, xTicks });
        drawSeries(panel.ctx, part);
      }
    },
    overlay: (panel) => panel.parts.forEach((part) => drawChosen(panel.ctx, part)),
    hit: (panel, x, y) => panel.parts.reduce((found, part) => found || hitChart(part, x, y), null),
    legend(panel) {
      const { series } = panel.parts[0];
      const chosen = { label: "the chosen epoch", colour: colours.ink, mark: "disc" };
      if (charts.length > 1 && !alternatives && series.length < 2) return []; // the titles say it
      return series.some((one) => one.epochs) ? [...series, chosen] : series;
    },
    readout(panel) {
      const epoch = recordEpoch(run());
      if (charts[0].readouts) return charts[0].readouts[state.run];
      const words = panel.parts.flatMap((part) => {
        const own = part.series.filter((one) => one.run === state.run);
        const label = (one) => (panel.parts.length > 1 ? part.chart.title : one.label.replace(`${run().name}: `, ""));
        return valuesAt(own.map((one) => ({ ...one, label: label(one) })), epoch, part.chart.unit);
      });
      return `Epoch ${epoch}: ${words.join(" · ") || "nothing was measured"}.`;
    },
    csv: (panel) => chartTable(panel.parts),
  };
}
