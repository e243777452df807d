// Numbers to pixels, ticks, and numbers to text.

function linear(low, high, from, to) {
  const factor = (to - from) / (high - low || 1);
  const scale = (value) => from + (value - low) * factor;
  scale.invert = (pixel) => low + (pixel - from) / factor;
  scale.ticks = (count) => niceTicks(low, high, count);
  return scale;
}

function logarithmic(low, high, from, to) {
  const a = Math.log10(low);
  const inner = linear(a, Math.log10(high), from, to);
  const scale = (value) => inner(Math.log10(Math.max(value, low * 1e-3)));
  scale.invert = (pixel) => 10 ** inner.invert(pixel);
  scale.ticks = (count) => logTicks(low, high, count);
  return scale;
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9) + 1e-12; i++) {
    ticks.push(+(i * step).toPrecision(12));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const multiples = decades > count ? [1] : decades > 1.6 ? [1, 3] : [1, 2, 5];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of multiples) {
      const tick = m * 10 ** e;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(+tick.toPrecision(6));
    }
  }
  const every = Math.ceil(ticks.length / Math.max(count, 2));
  return ticks.length > 1 ? ticks.filter((_, i) => i % every === 0) : niceTicks(low, high, count);
}

function short(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(+value.toPrecision(digits));
}

const percent = (share, digits = 1) => (share === null ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`);
const points = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(2)}\u00a0%`);

// Least and largest finite number of some lists, those above zero only for a logarithmic axis.
function extent(lists, positive) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || !Number.isFinite(value) || (positive && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : positive ? [0.1, 1] : [0, 1];
}
