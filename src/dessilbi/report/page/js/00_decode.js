// From the text in the page to typed arrays. Everything is stored once, deflated; see pack.py.

async function inflate(text) {
  const packed = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const WIDTHS = { u1: 1, i1: 1, u2: 2, i4: 4, f4: 4 };

function unpack(entry, bytes) {
  const size = entry.shape.reduce((a, b) => a * b, 1);
  const raw = bytes.slice(entry.at, entry.at + size * WIDTHS[entry.type]);
  let array;
  if (entry.type === "u2") {
    // Low bytes first, then high ones: exponents and signs of differences are much alike.
    array = new Uint16Array(size);
    for (let i = 0; i < size; i++) array[i] = raw[i] | (raw[size + i] << 8);
  } else {
    const kinds = { u1: Uint8Array, i1: Int8Array, i4: Int32Array, f4: Float32Array };
    array = new kinds[entry.type](raw.buffer, 0, size);
  }
  if (entry.delta) {
    const row = size / entry.shape[0];
    for (let i = row; i < size; i++) array[i] += array[i - row]; // wraps around, as it should
  }
  return array;
}

// Norms were rounded to 16 bits of the largest of each layer.
function unpackScaled(entry, bytes) {
  const rounded = unpack(entry, bytes);
  const columns = entry.shape[1];
  const scale = new Float32Array(columns);
  entry.starts.forEach((start, i) => scale.fill(entry.scales[i], start, entry.starts[i + 1]));
  const values = new Float32Array(rounded.length);
  for (let i = 0; i < values.length; i++) values[i] = rounded[i] * scale[i % columns];
  return values;
}

function decodePath(path, bytes) {
  for (const name of ["W", "V", "Gamma"]) path[name] = unpackScaled(path[name], bytes);
  path.joint = path.joint ? unpackScaled(path.joint, bytes) : path.V; // what λ is the threshold of
  for (const name of ["inside", "entry", "leaves", "threshold"]) {
    path[name] = unpack(path[name], bytes);
  }
  path.overlap.matrix = unpack(path.overlap.matrix, bytes);
  path.rows = path.entry.length;
  path.snapshots = path.epochs.length;
  path.layerOf = new Uint16Array(path.rows);
  path.layers.forEach((layer, i) => {
    layer.index = i;
    path.layerOf.fill(i, layer.start, layer.start + layer.rows);
  });
  path.entryEpoch = Float32Array.from(path.entry, (step) => epochOfStep(path, step));
  return path;
}

function epochOfStep(path, step) {
  if (step < 0) return NaN;
  const { steps, epochs } = path;
  let i = 1;
  while (i < steps.length - 1 && steps[i] < step) i++;
  if (steps.length < 2 || steps[i] === steps[i - 1]) return epochs[0];
  const share = (step - steps[i - 1]) / (steps[i] - steps[i - 1]);
  return epochs[i - 1] + Math.min(share, 1) * (epochs[i] - epochs[i - 1]);
}

async function decode() {
  const report = JSON.parse(document.getElementById("values").textContent);
  const bytes = await inflate(document.getElementById("arrays").textContent.trim());
  for (const run of report.runs) if (run.path) decodePath(run.path, bytes);
  report.bytes = bytes; // pictures are unpacked when they are looked at
  return report;
}
