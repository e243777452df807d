// Axes, cursors and lines that several panels share.

function frameOf(panel, left = 46) {
  return { left, top: 24, right: panel.width - 12, bottom: panel.height - 34 };
}

function axes(ctx, frame, x, y, { xLabel, yLabel, xTicks, yTicks, grid = true }) {
  ctx.font = `11px ${colours.font}`;
  ctx.lineWidth = 1;
  ctx.strokeStyle = colours.grid;
  ctx.fillStyle = colours.muted;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  const rows = yTicks || y.ticks(Math.max((frame.bottom - frame.top) / 44, 2));
  for (const tick of rows) {
    const at = Math.round(y(tick)) + 0.5;
    if (at < frame.top - 1 || at > frame.bottom + 1) continue;
    if (grid) line(ctx, frame.left, at, frame.right, at);
    ctx.fillText(short(tick), frame.left - 6, at);
  }
  ctx.textBaseline = "top";
  ctx.textAlign = "center";
  for (const tick of xTicks || x.ticks(Math.max((frame.right - frame.left) / 70, 2))) {
    const at = Math.round(x(tick)) + 0.5;
    if (at < frame.left - 1 || at > frame.right + 1) continue;
    line(ctx, at, frame.bottom, at, frame.bottom + 4);
    ctx.fillText(short(tick), at, frame.bottom + 6);
  }
  ctx.strokeStyle = colours.muted;
  line(ctx, frame.left, frame.bottom + 0.5, frame.right, frame.bottom + 0.5);
  ctx.textAlign = "right";
  ctx.textBaseline = "bottom";
  if (xLabel) ctx.fillText(xLabel, frame.right, frame.bottom + 32);
  ctx.textAlign = "left";
  // Above the axis and level: nobody likes to turn the head.
  if (yLabel) ctx.fillText(yLabel, Math.max(frame.left - 40, 2), frame.top - 8);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

// Where the slider is; what comes after it is veiled.
function cursor(ctx, frame, x, epoch = state.epoch) {
  const at = Math.min(Math.max(x(epoch), frame.left), frame.right);
  ctx.fillStyle = colours.paper;
  ctx.globalAlpha = 0.6;
  ctx.fillRect(at, frame.top, frame.right - at + 4, frame.bottom - frame.top);
  ctx.globalAlpha = 1;
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 1;
  line(ctx, Math.round(at) + 0.5, frame.top, Math.round(at) + 0.5, frame.bottom);
}

function wholeTicks(low, high, count) {
  return niceTicks(low, high, count).filter((tick) => Number.isInteger(tick));
}

function polyline(ctx, xs, ys, x, y) {
  let open = false;
  ctx.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const value = ys[i];
    if (value === null || !Number.isFinite(value)) {
      open = false;
      continue;
    }
    if (open) ctx.lineTo(x(xs[i]), y(value));
    else ctx.moveTo(x(xs[i]), y(value));
    open = true;
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
