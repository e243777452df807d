// Accuracy against size: every budget, the support epoch by epoch, compact networks.

const SIZES = {
  density: { label: "density, % of the weights", factor: 100 },
  parameters: { label: "parameters", factor: 1 },
  macs: { label: "multiply-adds an image", factor: 1 },
};

function budgetSeries(size) {
  const many = report.runs.length > 1;
  const { factor } = SIZES[size];
  return report.runs.flatMap((one, i) => {
    const prefix = many ? `${one.name}: ` : "";
    const colour = runColour(i);
    const found = [];
    if (one.budgets.points.length) {
      found.push({
        label: `${prefix}every budget`, colour, mark: "disc", judgedOn: one.budgets.judged_on,
        points: one.budgets.points.map((p) => ({ x: p[size] * factor, y: p.accuracy, words: budgetWords(p) })),
      });
    }
    const { epoch, density, recalibrated_accuracy: accuracy } = one.records;
    const along = epoch
      .map((e, k) => ({ epoch: e, x: density[k] * factor, y: accuracy[k], words: [`epoch ${e}`, `density ${percent(density[k], 2)}`, `accuracy ${points(accuracy[k])}`] }))
      .filter((p) => p.x > 0 && p.y !== null);
    if (size === "density" && one.path && along.length) {
      found.push({
        label: `${prefix}support, epoch by epoch`, colour: many ? colour : colours.runs[1], dash: [5, 3],
        judgedOn: one.judged_on, points: along, along: true,
      });
    }
    const compacts = one.compacts.filter((c) => c.accuracy !== null && (size !== "density" || c.density !== null));
    for (const judgedOn of new Set(compacts.map((c) => c.judged_on))) {
      const places = compacts
        .filter((c) => c.judged_on === judgedOn)
        .map((c) => ({ x: c[size] * factor, y: c.accuracy, words: compactWords(c) }));
      found.push({ label: `${prefix}compact network`, colour, mark: "square", judgedOn, points: places, loose: true });
    }
    return found;
  });
}

// The axis names the images; where they are not the same for all, each label does.
function nameImages(series) {
  const judged = new Set(series.map((one) => one.judgedOn));
  if (judged.size > 1) for (const one of series) one.label += ` (${one.judgedOn} images)`;
  return judged.size === 1 ? `accuracy, % of the ${[...judged][0]} images` : "accuracy, %";
}

function budgetWords(p) {
  return [
    `density ${percent(p.density, 2)}`, `${p.parameters.toLocaleString("en")} parameters`,
    `${Math.round(p.macs).toLocaleString("en")} multiply-adds`, `accuracy ${points(p.accuracy)}`,
  ];
}

function compactWords(c) {
  const lines = [
    c.chosen, `accuracy ${points(c.accuracy)}${c.recalibrated ? "" : ", BatchNorm as in the run"}`,
    `${c.parameters.toLocaleString("en")} parameters (${(c.dense_parameters / c.parameters).toFixed(1)}x fewer)`,
    `${(c.bytes / 1000).toFixed(1)} kB instead of ${(c.dense_bytes / 1000).toFixed(1)}`,
  ];
  for (const [batch, dense, small] of c.latency) {
    lines.push(`batch ${batch}: ${short(small, 3)} ms instead of ${short(dense, 3)} (${(dense / small).toFixed(2)}x)`);
  }
  return lines;
}

const budgetsSpec = {
  needs: ["run"],
  zoom: "top 5 points",
  choices: [
    { name: "size", label: "measure of size", options: [["density", "density"], ["parameters", "parameters"], ["macs", "multiply-adds"]] },
  ],
  height: (width) => Math.max(220, Math.min(300, width * 0.62)),
  base(panel) {
    const { ctx } = panel;
    const frame = (panel.frame = frameOf(panel));
    const series = (panel.series = budgetSeries(panel.options.size));
    panel.yLabel = nameImages(series);
    const [low, high] = extent(series.map((s) => s.points.map((p) => p.x)), panel.log);
    let [worst, best] = extent(series.map((s) => s.points.map((p) => p.y)));
    if (panel.zoom) worst = Math.max(worst, best - 5);
    const room = (best - worst || 1) * 0.06;
    panel.x = panel.log ? logarithmic(low / 1.2, high * 1.2, frame.left, frame.right) : linear(0, high * 1.03, frame.left, frame.right);
    panel.y = linear(worst - room, best + room, frame.bottom, frame.top);
    axes(ctx, frame, panel.x, panel.y, { xLabel: SIZES[panel.options.size].label, yLabel: panel.yLabel });
    ctx.beginPath();
    ctx.rect(frame.left - 6, frame.top - 6, frame.right - frame.left + 12, frame.bottom - frame.top + 12);
    ctx.clip();
    for (const one of series) {
      ctx.strokeStyle = one.colour;
      ctx.lineWidth = 1.7;
      ctx.setLineDash(one.dash || []);
      if (!one.loose) polyline(ctx, one.points.map((p) => p.x), one.points.map((p) => p.y), panel.x, panel.y);
      ctx.setLineDash([]);
      for (const p of one.points) {
        if (one.loose) {
          ctx.lineWidth = 2;
          ctx.strokeRect(panel.x(p.x) - 6, panel.y(p.y) - 6, 12, 12);
        } else dot(ctx, panel.x(p.x), panel.y(p.y), one.along ? 2.2 : 3.6, one.colour);
      }
    }
  },
  overlay(panel) {
    const { ctx, frame } = panel;
    for (const one of panel.series.filter((s) => s.along)) {
      const now = one.points.filter((p) => p.epoch <= state.epoch).at(-1); // a run may have ended
      if (now && panel.y(now.y) <= frame.bottom + 4) dot(ctx, panel.x(now.x), panel.y(now.y), 5.5, colours.ink);
    }
  },
  hit(panel, px, py) {
    let best = null;
    let distance = 16;
    for (const one of panel.series) {
      for (const p of one.points) {
        const gap = Math.hypot(panel.x(p.x) - px, panel.y(p.y) - py);
        if (gap <= distance) [best, distance] = [{ title: one.label, lines: p.words, epoch: p.epoch }, gap];
      }
    }
    return best;
  },
  legend: (panel) => [
    ...panel.series,
    ...(panel.series.some((s) => s.along) ? [{ label: "the chosen epoch", colour: colours.ink, mark: "disc" }] : []),
  ],
  readout() {
    const one = run();
    const budgets = one.budgets.points;
    if (!budgets.length) return `Run “dessilbi frontier” on this run for the accuracy of every budget.`;
    const best = Math.max(...budgets.map((p) => p.accuracy));
    const enough = budgets.find((p) => p.accuracy >= best - 0.5);
    const compact = one.compacts.length ? "" : " “dessilbi compact” adds sizes and latencies.";
    return `${percent(enough.density)} of the weights are enough to stay within half a point of the best, ${points(best)}.${compact}`;
  },
  csv(panel) {
    const rows = [["series", panel.options.size, "accuracy", "details"]];
    for (const one of panel.series) for (const p of one.points) rows.push([one.label, p.x, p.y, p.words.join("; ")]);
    return rows;
  },
};
