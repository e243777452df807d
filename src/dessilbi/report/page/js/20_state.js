// What is looked at. Every panel is told what changed, once a frame.

let report = null;
const state = { run: 0, layer: 0, epoch: 0, unit: null };
const listeners = [];
let changed = new Set();
let scheduled = false;

function change(values) {
  for (const [name, value] of Object.entries(values)) {
    if (state[name] === value) continue;
    state[name] = value;
    changed.add(name);
  }
  if (changed.size && !scheduled) {
    scheduled = true;
    requestAnimationFrame(tell);
  }
}

function tell() {
  const what = changed;
  changed = new Set();
  scheduled = false;
  for (const listener of listeners) listener(what);
}

function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

const run = () => report.runs[state.run];
const path = () => run().path;
const layer = () => path().layers[state.layer];

// The last snapshot at or before the chosen epoch: runs need not have taken the same ones.
function snapshotAt(epochs, epoch = state.epoch) {
  let at = 0;
  while (at < epochs.length - 1 && epochs[at + 1] <= epoch) at++;
  return at;
}

// The last record at or before the chosen epoch: a run may have ended before the longest one.
function recordAt(one, name) {
  const at = snapshotAt(one.records.epoch);
  return one.records.epoch[at] <= state.epoch ? one.records[name][at] : null;
}

const recordEpoch = (one) => recordAt(one, "epoch") ?? state.epoch;

function selectUnit(unit) {
  if (unit === null || unit === state.unit) return change({ unit: null });
  return change({ unit, layer: path().layerOf[unit] });
}

const unitsOf = (found) => Array.from({ length: found.rows }, (_, i) => found.start + i);
const layerUnits = () => unitsOf(layer());

// What the tooltip says of a filter, and what a click on it chooses.
const hitUnit = (unit) => ({ title: unitName(unit), lines: unitLines(unit), unit });

function unitName(unit) {
  const found = path().layers[path().layerOf[unit]];
  return `${found.short}, ${found.word} ${unit - found.start}`;
}

// A residual stream has dozens of layers.
function partnerNames(found) {
  const [first, ...others] = found.partners;
  return others.length ? `${first} and ${others.length} more` : first;
}

function unitLines(unit) {
  const p = path();
  const found = p.layers[p.layerOf[unit]];
  const snapshot = snapshotAt(p.epochs);
  const at = snapshot * p.rows + unit;
  const lines = [];
  if (p.entry[unit] < 0) lines.push("never entered");
  else {
    const seen = found.exact ? "entered at step" : "first weight seen at step";
    lines.push(`${seen} ${p.entry[unit].toLocaleString("en")} (epoch ${p.entryEpoch[unit].toFixed(1)})`);
  }
  if (p.leaves[unit]) lines.push(`left again ${p.leaves[unit]} time${p.leaves[unit] > 1 ? "s" : ""}`);
  const inside = p.inside[at];
  const where = inside === 255 ? "in the support" : inside ? `${percent(inside / 255, 0)} in the support` : "outside";
  lines.push(`epoch ${p.epochs[snapshot]}: ${where}`);
  lines.push(`‖W‖ ${short(p.W[at], 3)}   ‖Γ‖ ${short(p.Gamma[at], 3)}   ‖V‖ ${short(p.V[at], 3)}`);
  if (found.exact && p.threshold[unit] > 0) {
    const joint = found.partners.length ? `joint ‖V‖ with ${partnerNames(found)}` : "‖V‖";
    lines.push(`${joint} is ${percent(p.joint[at] / p.threshold[unit], 0)} of λ`);
  }
  return lines;
}
