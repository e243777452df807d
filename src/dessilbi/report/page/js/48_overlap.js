// How much the supports of two epochs share.

const overlapSpec = {
  height: (width) => Math.max(240, Math.min(340, width * 0.8)),
  base(panel) {
    const { ctx } = panel;
    const { epochs, matrix } = path().overlap;
    const n = epochs.length;
    const { left, right, top, bottom } = frameOf(panel);
    const size = Math.min(right - left - 60, bottom - top);
    const frame = (panel.frame = { left, top: bottom - size, right: left + size, bottom });
    const x = (panel.x = linear(0, n, left, left + size));
    const y = (panel.y = linear(0, n, bottom, bottom - size));
    const colour = ramp(CIVIDIS);
    ctx.imageSmoothingEnabled = false;
    const image = pixelImage(n, n, (j, i) => packed(colour(matrix[(n - 1 - i) * n + j] / 65535)));
    ctx.drawImage(image, left, frame.top, size, size);
    const every = Math.max(1, Math.ceil(n / Math.max(Math.floor(size / 34), 1)));
    for (let i = 0; i < n; i += every) {
      write(ctx, epochs[i], x(i + 0.5), bottom + 5, { align: "center", base: "top" });
      write(ctx, epochs[i], left - 6, y(i + 0.5), { align: "right" });
    }
    write(ctx, "epoch", frame.right, bottom + 32, { align: "right", base: "bottom" });
    write(ctx, "epoch", 4, frame.top - 8, { base: "bottom" });
    ctx.drawImage(pixelImage(1, 100, (_, i) => packed(colour(1 - i / 100))), frame.right + 14, frame.top, 10, size);
    for (const share of [0, 50, 100]) write(ctx, `${share} %`, frame.right + 28, bottom - (share / 100) * size);
  },
  overlay(panel) {
    const at = snapshotAt(path().overlap.epochs);
    const { ctx, frame } = panel;
    [ctx.strokeStyle, ctx.lineWidth] = ["#ffffff", 2];
    const width = panel.x(1) - panel.x(0);
    ctx.strokeRect(panel.x(at) - 0.5, frame.top, width + 1, frame.bottom - frame.top);
    ctx.strokeRect(frame.left, panel.y(at + 1) - 0.5, frame.right - frame.left, width + 1);
  },
  hit(panel, px, py) {
    const { epochs, matrix } = path().overlap;
    const [j, i, n] = [Math.floor(panel.x.invert(px)), Math.floor(panel.y.invert(py)), epochs.length];
    if (i < 0 || j < 0 || i >= n || j >= n) return null;
    const lines = [`overlap ${percent(matrix[i * n + j] / 65535)}`];
    return { title: `epochs ${epochs[j]} and ${epochs[i]}`, lines, epoch: epochs[j] };
  },
  readout() {
    const { overlap, settled } = path();
    const n = overlap.epochs.length;
    const at = snapshotAt(overlap.epochs);
    const words = settled === null ? "The support has not settled by the run’s own rule." : `By the run’s own rule it settled at epoch ${settled}.`;
    return `The support of epoch ${overlap.epochs[at]} shares ${percent(overlap.matrix[at * n + n - 1] / 65535)} with the last one. ${words}`;
  },
  csv() {
    const { epochs, matrix } = path().overlap;
    const row = (i) => epochs.map((_, j) => matrix[i * epochs.length + j] / 65535);
    return [["epoch", ...epochs], ...epochs.map((e, i) => [e, ...row(i)])];
  },
};
