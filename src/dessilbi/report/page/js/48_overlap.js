// How much supports share: of two epochs of a run, and of two runs after the same epoch.

function overlapImage(found) {
  const n = found.epochs.length;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = n;
  const ctx = canvas.getContext("2d");
  const image = ctx.createImageData(n, n);
  const colour = ramp(CIVIDIS);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const to = ((n - 1 - i) * n + j) * 4;
      image.data.set(colour(found.matrix[i * n + j] / 65535), to);
      image.data[to + 3] = 255;
    }
  }
  ctx.putImageData(image, 0, 0);
  return canvas;
}

const overlapSpec = {
  needs: ["run"],
  height: (width) => Math.max(240, Math.min(340, width * 0.8)),
  base(panel) {
    const { ctx } = panel;
    const found = path().overlap;
    const n = found.epochs.length;
    const frame = frameOf(panel);
    const size = Math.min(frame.right - frame.left - 60, frame.bottom - frame.top);
    panel.frame = { left: frame.left, top: frame.bottom - size, right: frame.left + size, bottom: frame.bottom };
    panel.x = linear(0, n, frame.left, frame.left + size);
    panel.y = linear(0, n, frame.bottom, frame.bottom - size);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(overlapImage(found), panel.frame.left, panel.frame.top, size, size);
    const every = Math.max(1, Math.ceil(n / Math.max(Math.floor(size / 34), 1)));
    const ticks = found.epochs.map((_, i) => i).filter((i) => i % every === 0);
    ctx.font = `11px ${colours.font}`;
    ctx.fillStyle = colours.muted;
    for (const i of ticks) {
      ctx.textAlign = "center";
      ctx.textBaseline = "top";
      ctx.fillText(found.epochs[i], panel.x(i + 0.5), panel.frame.bottom + 5);
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(found.epochs[i], panel.frame.left - 6, panel.y(i + 0.5));
    }
    ctx.textBaseline = "bottom";
    ctx.fillText("epoch", panel.frame.right, panel.frame.bottom + 32);
    ctx.textAlign = "left";
    ctx.fillText("epoch", 4, panel.frame.top - 8);
    this.key(panel);
  },
  key(panel) {
    const { ctx, frame } = panel;
    const colour = ramp(CIVIDIS);
    const height = frame.bottom - frame.top;
    for (let i = 0; i < height; i++) {
      ctx.fillStyle = css(colour(i / height));
      ctx.fillRect(frame.right + 14, frame.bottom - i - 1, 10, 1.5);
    }
    ctx.fillStyle = colours.muted;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    for (const share of [0, 50, 100]) ctx.fillText(`${share} %`, frame.right + 28, frame.bottom - (share / 100) * height);
  },
  overlay(panel) {
    const found = path().overlap;
    const at = markAt(found.epochs);
    const { ctx, frame } = panel;
    ctx.strokeStyle = "#ffffff";
    ctx.lineWidth = 2;
    const width = panel.x(1) - panel.x(0);
    ctx.strokeRect(panel.x(at) - 0.5, frame.top, width + 1, frame.bottom - frame.top);
    ctx.strokeRect(frame.left, panel.y(at + 1) - 0.5, frame.right - frame.left, width + 1);
  },
  hit(panel, px, py) {
    const found = path().overlap;
    const [j, i] = [Math.floor(panel.x.invert(px)), Math.floor(panel.y.invert(py))];
    const n = found.epochs.length;
    if (i < 0 || j < 0 || i >= n || j >= n) return null;
    return {
      title: `epochs ${found.epochs[j]} and ${found.epochs[i]}`,
      lines: [`overlap ${percent(found.matrix[i * n + j] / 65535)}`],
      epoch: found.epochs[j],
    };
  },
  readout() {
    const found = path().overlap;
    const n = found.epochs.length;
    const at = markAt(found.epochs);
    const share = found.matrix[at * n + n - 1] / 65535;
    const settled = path().settled;
    const words = settled === null ? "The support has not settled by the run’s own rule." : `By the run’s own rule it settled at epoch ${settled}.`;
    return `The support of epoch ${found.epochs[at]} shares ${percent(share)} with the last one. ${words}`;
  },
  csv() {
    const found = path().overlap;
    const n = found.epochs.length;
    return [["epoch", ...found.epochs], ...found.epochs.map((e, i) => [e, ...found.epochs.map((_, j) => found.matrix[i * n + j] / 65535)])];
  },
};

function pairSeries() {
  const { between, runs } = report;
  if (!between) return [];
  const n = runs.length;
  return runs
    .map((one, j) => ({
      label: `${run().name} and ${one.name}`, colour: runColour(j), dash: [], x: between.epochs,
      y: between.epochs.map((_, e) => 100 * between.matrix[(e * n + state.run) * n + j]),
      shown: j !== state.run && between.comparable[state.run][j],
    }))
    .filter((one) => one.shown);
}

const betweenSpec = {
  ...curvesSpec({
    series: pairSeries,
    yLabel: () => "weights in both over weights in either, %",
    floor: 0,
    unit: " %",
    readout(panel) {
      if (!panel.series.length) return `No other run has the layers of ${run().name}.`;
      return "Filters have no identity of their own: runs that start from other weights agree no more than by chance.";
    },
  }),
  csv() {
    const { between, runs } = report;
    const rows = [["epoch", "run", "other_run", "overlap"]];
    if (!between) return rows;
    const n = runs.length;
    between.epochs.forEach((epoch, e) => {
      for (let i = 0; i < n; i++) {
        for (let j = 0; j < i; j++) {
          if (between.comparable[i][j]) rows.push([epoch, runs[i].name, runs[j].name, between.matrix[(e * n + i) * n + j]]);
        }
      }
    });
    return rows;
  },
};
