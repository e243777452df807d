// Panels of the chosen run's path: its filters, layers and supports.

const hasPath = () => Boolean(path());
const SUPPORT = [["in the support", "box", "inside"], ["outside", "box", "outside"]];

// ---------------------------------------------------------------- the paper's Figure 1

// The line of a filter where it lies inside (or outside) the support. Between two snapshots that is
// what it is at the second, but for the entry, whose step is known.
function trace({ x, y, values }, unit, inside) {
  const p = path();
  const entry = p.entered[unit];
  let [d, open] = ["", false];
  for (let m = 1; m < p.epochs.length; m++) {
    const [from, to] = [p.epochs[m - 1], p.epochs[m]];
    const within = p.inside[m * p.rows + unit] > 0;
    const enters = within && p.layerOf[unit].exact && entry > from && entry < to;
    const wanted = inside ? within : !within || enters;
    const start = inside && enters ? entry : from;
    if (wanted && !open) d += `M${at(x(start))} ${at(1 - y(valueAt(values, unit, start)))}`;
    if (wanted) d += `L${at(x(to))} ${at(1 - y(values[m * p.rows + unit]))}`;
    open = wanted;
  }
  return d;
}

function valueAt(values, unit, epoch) {
  const { epochs, rows } = path();
  const m = Math.min(Math.max(epochs.findLastIndex((one) => one <= epoch), 0), Math.max(epochs.length - 2, 0));
  const next = Math.min(m + 1, epochs.length - 1);
  const share = next === m ? 0 : (epoch - epochs[m]) / (epochs[next] - epochs[m]);
  const [a, b] = [values[m * rows + unit], values[next * rows + unit]];
  return a + (b - a) * Math.min(Math.max(share, 0), 1);
}

function pathLines(plot, units, kind) {
  const { entered } = path();
  const came = units.filter((unit) => !Number.isNaN(entered[unit]));
  const rings = spots(came.map((unit) => entered[unit]), came.map((unit) => valueAt(plot.values, unit, entered[unit])), plot);
  const lines = (inside) => units.map((unit) => trace(plot, unit, inside)).join("");
  const halo = kind === "one" ? `<path class="halo" d="${lines(false)}${lines(true)}"/>` : "";
  return `<g class="${kind}">${halo}<path class="outside" d="${lines(false)}"/><path class="inside" d="${lines(true)}"/>
    <path class="ring under" d="${rings}"/><path class="ring" d="${rings}"/></g>`;
}

const pathsSpec = {
  log: true,
  needs: ["run", "layer"],
  shown: hasPath,
  choices: [{ name: "norm", label: "which norm", options: Object.entries(SYMBOLS).map(([name, symbol]) => [name, `norm of ${symbol}`]) }],
  draw(panel) {
    const [p, found] = [path(), layer()];
    const values = p[panel.options.norm];
    const lists = p.epochs.map((_, m) => values.subarray(m * p.rows + found.start, m * p.rows + found.start + found.rows));
    const [low, high] = extent(lists, panel.log);
    const y = panel.log ? scale(Math.max(low / 1.15, high * 1e-5), high * 1.15, true) : scale(0, high * 1.04 || 1);
    const x = epochScale(p.epochs);
    const lines = pathLines({ x, y, values }, unitsOf(found), found.rows > 128 ? "many" : "few");
    panel.plot = makePlot(x, y, "epoch", `norm of the ${found.word}, ‖${SYMBOLS[panel.options.norm]}‖`, lines);
    panel.plot.values = values;
    panel.body.append(panel.plot);
  },
  mark({ plot }) {
    const { unit } = state;
    plot.marks.replaceChildren(cursor(plot.x(state.epoch)));
    plot.front.innerHTML = "";
    if (unit === null || path().layerOf[unit] !== layer()) return;
    plot.front.innerHTML = pathLines(plot, [unit], "one");
    const height = plot.y(valueAt(plot.values, unit, path().epochs.at(-1)));
    plot.marks.append(words("name", `${layer().word} ${unit - layer().start}`, `bottom:${100 * height}%`));
  },
  hit({ plot }, event) {
    const { x, y, box } = pointer(event, plot);
    if (x < -0.01 || x > 1.01) return null;
    const away = (unit) => Math.abs(plot.y(valueAt(plot.values, unit, plot.x.invert(x))) - y) * box.height;
    const [nearest, gap] = unitsOf(layer()).reduce((best, unit) => (away(unit) < best[1] ? [unit, away(unit)] : best), [null, 18]);
    return gap < 18 ? aboutUnit(nearest) : null;
  },
  legend: () => [
    ["in the support of Γ", "solid", "inside"], ["outside", "dashed", "outside"],
    [layer().exact ? "entry, to the step" : "first weight seen", "ring", "inside"],
  ],
  readout() {
    const inside = unitsOf(layer()).filter((unit) => now("inside", unit) > 0).length;
    const { short: name, rows, word, exact } = layer();
    return `${name}, epoch ${path().epochs[snapshot]}: ${inside} of ${rows} ${word}s ${exact ? "are" : "have weights"} in the support.`;
  },
};

// ---------------------------------------------------------------- who entered when

const entriesSpec = {
  shown: hasPath,
  draw(panel) {
    const { layers, epochs } = path();
    const x = scale(epochs[0] - 0.5, epochs.at(-1) + 0.5);
    x.ticks = x.ticks.filter(Number.isInteger);
    // Small layers get more than their share, or a first layer of 16 filters could not be seen.
    panel.bands = layers.map((found) => {
      const band = element("div", { className: "band", style: `flex-grow:${Math.sqrt(found.rows)};background-image:url(${address(found.entries)})` });
      band.append(words("tick-y", found.short));
      return Object.assign(band, { found, order: byEntry(found) });
    });
    const height = 60 + 12 * layers.reduce((sum, found) => sum + Math.sqrt(found.rows), 0);
    const bands = element("div", { className: "bands", style: `min-height:${Math.min(height, 460)}px` }, ...panel.bands);
    panel.marks = element("div", { className: "marks" });
    const key = words("key viridis", "");
    const longest = Math.max(...layers.map((found) => found.short.length));
    panel.body.append(
      element("div", { className: "keys" }, "entered at epoch 0", key, String(epochs.at(-1))),
      (panel.map = Object.assign(element("div", { className: "map", style: `--names:min(${longest}ch, 34cqw)` }, bands, ...xTicks(x), words("label-x", "epoch"), panel.marks), { x }))
    );
  },
  mark(panel) {
    const { epochs, layerOf } = path();
    panel.marks.replaceChildren(cursor(panel.map.x(epochs[snapshot] + 0.5)));
    panel.bands.forEach((band) => {
      band.classList.toggle("current", band.found === layer());
      band.querySelector(".row")?.remove();
      if (state.unit === null || layerOf[state.unit] !== band.found) return;
      const row = (band.order.indexOf(state.unit) + 0.5) / band.found.rows;
      band.append(element("i", { className: "row", style: `top:${100 * row}%` }));
    });
  },
  hit(panel, event) {
    const band = panel.bands.find((one) => event.clientY < one.getBoundingClientRect().bottom);
    if (!band) return null;
    const row = Math.floor((1 - pointer(event, band).y) * band.found.rows);
    return aboutUnit(band.order[Math.min(Math.max(row, 0), band.found.rows - 1)]);
  },
  readout() {
    const p = path();
    const entered = p.entry.filter((step) => step >= 0 && step <= p.steps[snapshot]).length;
    return `Up to epoch ${p.epochs[snapshot]}: ${entered.toLocaleString("en")} of ${p.rows.toLocaleString("en")} filters and neurons entered.`;
  },
};

// ---------------------------------------------------------------- who is next

// ||V_g|| against lambd; of tied filters, which enter together, V_g is that of all of them.
const ratio = (unit) => now("joint", unit) / path().threshold[unit];
const waiting = (unit) => !now("inside", unit) && ratio(unit) > 0;
const nearest = (units) => units.sort((a, b) => ratio(b) - ratio(a));

const nextSpec = {
  needs: ["run", "layer", "epoch"],
  shown: () => hasPath() && path().layers.some((found) => found.exact),
  draw(panel) {
    panel.units = layer().exact && path().threshold[layer().start] > 0 ? nearest(unitsOf(layer())) : [];
    if (!panel.units.length) return;
    const highest = Math.max(1.15, ...panel.units.map(ratio).filter(Number.isFinite)) * 1.05;
    const bars = panel.units.map((unit) => {
      const look = now("inside", unit) ? "inside" : "outside";
      const bar = element("i", { className: look, style: `height:${(100 * ratio(unit)) / highest}%` });
      const made = element("span", { className: "bar" }, bar, words("tick-x", panel.units.length > 40 ? "" : unit - layer().start));
      made.dataset.unit = unit;
      return made;
    });
    const y = layer().partners.length ? "joint ‖V‖ / λ" : "‖V‖ / λ";
    const threshold = element("i", { className: "threshold", style: `bottom:${100 / highest}%` }, words("", "enters above λ"));
    panel.body.append(element("div", { className: "plot bars" }, ...bars, threshold, words("label-y", y), words("label-x", `${layer().word}s of ${layer().short}, the nearest first`)));
  },
  legend: (panel) => (panel.units.length ? SUPPORT : []),
  readout({ units }) {
    if (!units.length) return layer().exact ? "No thresholds were recorded." : `Weights of ${layer().short} enter one by one.`;
    const names = units.filter(waiting).slice(0, 3).map((unit) => `${unit - layer().start} (${percent(ratio(unit), 0)} of λ)`);
    // Under a mask, or before the first step, V is zero: nobody waits, and yet not all are in.
    const none = units.every((unit) => now("inside", unit)) ? `All of ${layer().short} are in.` : `Nobody else of ${layer().short} is on the way.`;
    const said = [names.length ? `Next in ${layer().short}: ${names.join(", ")}.` : none];
    if (layer().partners.length) said.push(`They enter with those of ${partnerNames(layer().partners)}.`);
    const all = Array.from(path().entry.keys()).filter((unit) => waiting(unit) && path().threshold[unit] > 0);
    const [first] = all.length ? [all.reduce((a, b) => (ratio(b) > ratio(a) ? b : a))] : [];
    if (all.length && path().layerOf[first] !== layer()) said.push(`In the whole net: ${unitName(first)} (${percent(ratio(first), 0)}).`);
    return said.join(" ");
  },
};

// ---------------------------------------------------------------- density by layer

function layerDensities() {
  const { path: p, records, densities } = run();
  if (!p) {
    const at = lastBefore(records.epoch);
    return Object.entries(densities).map(([name, values]) => ({ name, now: values[at] ?? 0, end: values.at(-1) ?? 0 }));
  }
  return p.layers.map((one, i) => ({ name: one.short, now: p.densities[snapshot][i], end: p.densities.at(-1)[i], numel: one.numel, layer: i }));
}

const densitiesSpec = {
  needs: ["run", "epoch", "layer"],
  shown: () => hasPath() || Object.keys(run().densities).length > 0,
  draw(panel) {
    panel.rows = layerDensities();
    panel.body.append(...panel.rows.map((row, i) => {
      const bar = element("i", { className: "inside", style: `width:${100 * row.now}%` });
      const track = element("span", { className: "track" }, bar, element("i", { className: "end", style: `left:${100 * row.end}%` }));
      const made = element("div", { className: row.layer === state.layer ? "density current" : "density" }, words("", row.name), track, words("", percent(row.now)));
      made.dataset.row = i;
      return made;
    }));
  },
  hit(panel, event) {
    const row = panel.rows[event.target.closest("[data-row]")?.dataset.row];
    if (!row) return null;
    const lines = [`now ${percent(row.now, 2)}`, `at the end ${percent(row.end, 2)}`];
    if (row.numel) lines.push(`${row.numel.toLocaleString("en")} weights`);
    return { title: row.name, lines, layer: row.layer };
  },
  legend: () => [SUPPORT[0], ["where the run ends", "tick", "ink"]],
  readout() {
    const p = path();
    const density = p ? p.density[snapshot] : recordAt(run(), "density");
    return `Epoch ${p ? p.epochs[snapshot] : recordEpoch(run())}: ${percent(density, 2)} of all these weights.`;
  },
};

// ---------------------------------------------------------------- filters as images

const filtersSpec = {
  needs: ["run", "layer"],
  shown: () => Boolean(nearestKept()),
  draw(panel) {
    const kept = (panel.kept = nearestKept());
    if (!kept.sheets[state.layer]) return;
    const size = Math.max(18, Math.min(64, Math.floor(Math.sqrt(2e5 / layer().rows))));
    const at = path().epochs.indexOf(kept.epoch) * path().rows;
    for (const what of ["W", "Gamma"]) {
      const pictures = byEntry(layer()).map((unit) => {
        const made = picture(unit, what, size);
        made.classList.add(path().inside[at + unit] ? "inside" : "outside");
        made.dataset.unit = unit;
        return made;
      });
      const title = what === "W" ? "W, the weights" : "Γ, the sparse twin";
      panel.body.append(element("div", {}, element("strong", {}, title), element("div", { className: "pictures" }, ...pictures)));
    }
  },
  mark: (panel) => panel.kept !== nearestKept() && panel.draw(),
  readout() {
    const kept = nearestKept();
    if (!kept.sheets[state.layer]) return "Not stored for this layer: the page would be too large.";
    const where = kept.epoch === state.epoch ? `Epoch ${kept.epoch}` : `Epoch ${kept.epoch}, the kept one nearest to ${state.epoch}`;
    const epochs = path().checkpoints.map((one) => one.epoch).join(", ");
    return `${where} (kept: ${epochs}). A pixel: ${layer().pixel}. W and Γ each on a scale of its own, the largest 1\u00a0% saturated; frames as in the paths.`;
  },
};
