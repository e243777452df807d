// Filters as images, at the kept epoch nearest to the chosen one.

function nearestKept(one = run(), epoch = state.epoch) {
  const kept = one.path ? one.path.checkpoints : [];
  return kept.reduce(
    (best, k) => (best && Math.abs(best.epoch - epoch) <= Math.abs(k.epoch - epoch) ? best : k),
    null
  );
}

const atlases = new Map();

// A few large weights would leave the rest pale: the largest hundredth may saturate.
function contrast(values) {
  const counts = new Uint32Array(129);
  for (const value of values) counts[Math.abs(value)]++;
  const most = (values.length - counts[0]) / 100;
  let [level, above] = [128, 0];
  while (level > 8 && above + counts[level] <= most) above += counts[level--];
  return 127 / Math.min(level, 127);
}

const light = (value) => Math.min(Math.max(Math.round(128 + value), 0), 255);

// All filters of a layer in one off-screen canvas, side by side in a square.
function atlas(kept, found, what) {
  const key = `${state.run}/${kept.epoch}/${found.index}/${what}/${colours.dark}`;
  if (atlases.has(key)) return atlases.get(key);
  const stored = kept.images[found.index];
  if (!stored) return null;
  if (atlases.size > 64) atlases.clear();
  const values = unpack(stored[what], report.bytes);
  const { height, width, channels, mode } = found.sheet;
  const across = Math.ceil(Math.sqrt(found.rows * (height / width)));
  const signed = ramp(PURPLE_ORANGE);
  const pooled = ramp([colours.zero, "#b39bc8", "#6a3d9a", "#3b1a63"]);
  const gain = contrast(values);
  const table = Array.from({ length: 256 }, (_, i) => {
    const share = ((i - 128) / 127) * gain;
    return packed(mode === "pooled" ? pooled(share) : signed((share + 1) / 2));
  });
  const canvas = pixelImage(across * width, Math.ceil(found.rows / across) * height, (x, y) => {
    const row = Math.floor(y / height) * across + Math.floor(x / width);
    if (row >= found.rows) return 0;
    const from = ((row * height + (y % height)) * width + (x % width)) * channels;
    return channels === 3 ? packed([0, 1, 2].map((k) => light(values[from + k] * gain))) : table[values[from] + 128];
  });
  const made = { canvas, across, width, height };
  atlases.set(key, made);
  return made;
}

function drawFilter(ctx, sheet, index, x, y, size) {
  const sx = (index % sheet.across) * sheet.width;
  const sy = Math.floor(index / sheet.across) * sheet.height;
  const scale = size / Math.max(sheet.width, sheet.height);
  const w = sheet.width * scale;
  const h = sheet.height * scale;
  ctx.imageSmoothingEnabled = sheet.width > size * 1.5;
  ctx.drawImage(sheet.canvas, sx, sy, sheet.width, sheet.height, x + (size - w) / 2, y + (size - h) / 2, w, h);
}
