// Coupling gap, augmented loss and Lyapunov value: small multiples on one axis of epochs.

function dynamicsParts() {
  const of = (one, y) => ({ x: one.path.epochs, y });
  const found = [
    ["coupling gap ‖W − Γ‖", (one) => one.path && of(one, one.path.gap)],
    ["augmented loss L + ‖W − Γ‖² / 2ν", (one) => one.path && one.path.augmented.some((v) => v !== null) && of(one, one.path.augmented)],
    ["Lyapunov value F", (one) => {
      if (!one.lyapunov) return null;
      const last = one.path ? one.path.steps[one.path.marks - 1] : one.lyapunov.step[one.lyapunov.step.length - 1];
      const epochs = (one.path ? one.path.epochs : one.records.epoch).at(-1);
      return { x: one.lyapunov.step.map((s) => (s / last) * epochs), y: one.lyapunov.F };
    }],
  ];
  return found
    .map(([title, curve]) => ({
      title,
      series: report.runs
        .map((one, i) => ({ one, i, curve: curve(one) }))
        .filter(({ curve: c }) => c)
        .map(({ one, i, curve: c }) => ({ label: one.name, colour: runColour(i), dash: [], wide: i === state.run && report.runs.length > 1, ...c })),
    }))
    .filter((part) => part.series.length);
}

const dynamicsSpec = {
  needs: ["run"],
  height: (width) => (width < 520 ? 170 : 220) * (width < 520 ? dynamicsParts().length : 1),
  base(panel) {
    const items = (panel.parts = dynamicsParts());
    const narrow = panel.width < 520;
    items.forEach((part, i) => {
      const width = narrow ? panel.width : panel.width / items.length;
      const left = narrow ? 0 : i * width;
      const top = narrow ? (i * panel.height) / items.length : 0;
      const height = narrow ? panel.height / items.length : panel.height;
      part.frame = { left: left + 46, top: top + 24, right: left + width - 10, bottom: top + height - 34 };
      part.scales = lineScales(panel, part.frame, part.series, { floor: 0 });
      const [a, b] = wholeRun();
      axes(panel.ctx, part.frame, part.scales.x, part.scales.y, {
        xLabel: "epoch", yLabel: part.title, xTicks: wholeTicks(a, b, (part.frame.right - part.frame.left) / 50),
      });
      drawLines(panel.ctx, part.frame, part.scales, part.series);
    });
  },
  overlay(panel) {
    for (const part of panel.parts) {
      cursor(panel.ctx, part.frame, part.scales.x);
      drawMarks(panel.ctx, part.frame, part.scales, part.series);
    }
  },
  hit(panel, x, y) {
    for (const part of panel.parts) {
      const found = hitLines(part.frame, part.scales, part.series, x, y);
      if (found) return { ...found, title: `${part.title}, ${found.title}` };
    }
    return null;
  },
  legend: (panel) => (report.runs.length > 1 ? panel.parts[0].series : []),
  readout() {
    const one = run();
    const hint = one.lyapunov ? "" : " No Lyapunov value: LyapunovMonitor records it (docs/theory.md); save it as lyapunov.npz in the run directory.";
    if (!one.path) return hint.trim();
    const mark = markAt(one.path.epochs);
    return `Epoch ${one.path.epochs[mark]}: ‖W − Γ‖ = ${short(one.path.gap[mark], 3)}.${hint}`;
  },
  csv(panel) {
    const rows = [["quantity", "run", "epoch", "value"]];
    for (const part of panel.parts) {
      for (const one of part.series) one.x.forEach((x, i) => rows.push([part.title, one.label, x, one.y[i]]));
    }
    return rows;
  },
};
