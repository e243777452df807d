// The runs as the page holds them, what is looked at, and who is told when that changes.

let report = null;
const state = { run: 0, layer: 0, epoch: 0, unit: null };
let snapshot = 0; // of the chosen run, the last one at or before the chosen epoch

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

async function inflate(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function decode() {
  const found = JSON.parse(document.getElementById("values").textContent);
  const buffer = await inflate(document.getElementById("arrays").textContent.trim());
  for (const { path } of found.runs) {
    if (!path) continue;
    for (const [name, { kind, at, size }] of Object.entries(path.arrays)) {
      path[name] = new globalThis[kind](buffer, at, size);
    }
    path.joint ??= path.V; // what λ is the threshold of
    path.rows = path.entry.length;
    path.layers.forEach((layer, i) => (layer.index = i));
    path.layerOf = path.layers.flatMap((layer) => Array(layer.rows).fill(layer));
  }
  return found;
}

// ---------------------------------------------------------------- what is chosen

const listeners = [];
const changed = new Set();

function change(values) {
  const quiet = !changed.size;
  for (const [name, value] of Object.entries(values)) if (state[name] !== value) changed.add(name);
  Object.assign(state, values);
  if (quiet && changed.size) requestAnimationFrame(tell); // once a frame, however often
}

function tell() {
  const what = new Set(changed);
  changed.clear();
  snapshot = path() ? lastBefore(path().epochs) : 0;
  for (const listener of listeners) listener(what);
}

const run = () => report.runs[state.run];
const path = () => run().path;
const layer = () => path().layers[state.layer];

function selectUnit(unit) {
  if (unit === state.unit) change({ unit: null });
  else change({ unit, layer: path().layerOf[unit].index });
}

// Runs need not have recorded the same epochs.
const lastBefore = (epochs) => Math.max(epochs.findLastIndex((epoch) => epoch <= state.epoch), 0);

// The last record at or before the chosen epoch: a run may have ended before the longest one.
function recordAt(one, name) {
  const at = lastBefore(one.records.epoch);
  return one.records.epoch[at] <= state.epoch ? one.records[name][at] : null;
}

const recordEpoch = (one) => recordAt(one, "epoch") ?? state.epoch;

// What was recorded of a row of the path at the chosen epoch.
const now = (name, unit) => path()[name][snapshot * path().rows + unit];

function nearestKept() {
  const away = (kept) => Math.abs(kept.epoch - state.epoch);
  return (path()?.checkpoints ?? []).reduce((best, kept) => (best && away(best) <= away(kept) ? best : kept), null);
}

// ---------------------------------------------------------------- rows of the path

const unitsOf = (found) => Array.from({ length: found.rows }, (_, i) => found.start + i);

function byEntry(found) {
  const late = (unit) => (path().entry[unit] < 0 ? Infinity : path().entry[unit]);
  return unitsOf(found).sort((a, b) => late(a) - late(b) || a - b);
}

function unitName(unit) {
  const found = path().layerOf[unit];
  return `${found.short}, ${found.word} ${unit - found.start}`;
}

// A residual stream has dozens of layers.
function partnerNames([first, ...others]) {
  return others.length ? `${first} and ${others.length} more` : first;
}

// What the tooltip says of a filter; a click chooses it.
function aboutUnit(unit) {
  const p = path();
  const found = p.layerOf[unit];
  const seen = found.exact ? "entered at step" : "first weight seen at step";
  const entered = `${seen} ${p.entry[unit].toLocaleString("en")} (epoch ${p.entered[unit].toFixed(1)})`;
  const lines = [p.entry[unit] < 0 ? "never entered" : entered];
  const inside = now("inside", unit);
  const where = inside === 255 ? "in the support" : inside ? `${percent(inside / 255, 0)} in the support` : "outside";
  lines.push(`epoch ${p.epochs[snapshot]}: ${where}`);
  lines.push(["W", "Gamma", "V"].map((name) => `‖${SYMBOLS[name]}‖ ${short(now(name, unit), 3)}`).join("   "));
  if (found.exact && p.threshold[unit] > 0) {
    const norm = found.partners.length ? `joint ‖V‖ with ${partnerNames(found.partners)}` : "‖V‖";
    lines.push(`${norm} is ${percent(now("joint", unit) / p.threshold[unit], 0)} of λ`);
  }
  return { title: unitName(unit), lines, unit };
}
