// What panels share: axes, words, lines, images, colour keys.

const HEIGHT = (width) => Math.max(220, Math.min(300, width * 0.62));

function frameOf(panel, left = 46) {
  return { left, top: 24, right: panel.width - 12, bottom: panel.height - 34 };
}

function write(ctx, words, x, y, { align = "left", base = "middle", colour = colours.muted, font = "11px" } = {}) {
  ctx.font = `${font} ${colours.font}`;
  ctx.fillStyle = colour;
  ctx.textAlign = align;
  ctx.textBaseline = base;
  ctx.fillText(words, x, y);
}

function line(ctx, x0, y0, x1, y1, colour = ctx.strokeStyle, width = ctx.lineWidth) {
  [ctx.strokeStyle, ctx.lineWidth] = [colour, width];
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

function axes(ctx, frame, x, y, { xLabel, yLabel, xTicks, yTicks }) {
  for (const tick of yTicks || y.ticks(Math.max((frame.bottom - frame.top) / 44, 2))) {
    const at = Math.round(y(tick)) + 0.5;
    if (at < frame.top - 1 || at > frame.bottom + 1) continue;
    line(ctx, frame.left, at, frame.right, at, colours.grid, 1);
    write(ctx, short(tick), frame.left - 6, at, { align: "right" });
  }
  for (const tick of xTicks || x.ticks(Math.max((frame.right - frame.left) / 70, 2))) {
    const at = Math.round(x(tick)) + 0.5;
    if (at < frame.left - 1 || at > frame.right + 1) continue;
    line(ctx, at, frame.bottom, at, frame.bottom + 4, colours.grid, 1);
    write(ctx, short(tick), at, frame.bottom + 6, { align: "center", base: "top" });
  }
  line(ctx, frame.left, frame.bottom + 0.5, frame.right, frame.bottom + 0.5, colours.muted, 1);
  write(ctx, xLabel, frame.right, frame.bottom + 32, { align: "right", base: "bottom" });
  // Above the axis and level: nobody likes to turn the head.
  if (yLabel) write(ctx, yLabel, Math.max(frame.left - 40, 2), frame.top - 8, { base: "bottom" });
}

function epochTicks(frame, first, last) {
  return niceTicks(first, last, (frame.right - frame.left) / 60).filter(Number.isInteger);
}

// Where the slider is; what comes after it is veiled.
function cursor(ctx, frame, x, epoch = state.epoch) {
  const at = Math.min(Math.max(x(epoch), frame.left), frame.right);
  ctx.fillStyle = colours.paper;
  ctx.globalAlpha = 0.6;
  ctx.fillRect(at, frame.top, frame.right - at + 4, frame.bottom - frame.top);
  ctx.globalAlpha = 1;
  line(ctx, Math.round(at) + 0.5, frame.top, Math.round(at) + 0.5, frame.bottom, colours.ink, 1);
}

function polyline(ctx, xs, ys, x, y) {
  let open = false;
  ctx.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const known = ys[i] !== null && Number.isFinite(ys[i]);
    if (known && open) ctx.lineTo(x(xs[i]), y(ys[i]));
    else if (known) ctx.moveTo(x(xs[i]), y(ys[i]));
    open = known;
  }
  ctx.stroke();
}

function dot(ctx, px, py, radius, colour, filled = true) {
  ctx.beginPath();
  ctx.arc(px, py, radius, 0, 2 * Math.PI);
  ctx.fillStyle = filled ? colour : colours.paper;
  ctx.fill();
  ctx.strokeStyle = filled ? colours.paper : colour;
  ctx.lineWidth = 1.5;
  ctx.stroke();
}

// An image off screen, from the colour of each pixel as one number (see `packed`).
function pixelImage(width, height, colourAt) {
  const canvas = element("canvas", { width, height });
  const ctx = canvas.getContext("2d");
  const image = ctx.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) pixels[y * width + x] = colourAt(x, y);
  ctx.putImageData(image, 0, 0);
  return canvas;
}
