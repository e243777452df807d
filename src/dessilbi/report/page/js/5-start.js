// The bar on top, the numbers in large, and the start.

const byId = (name) => document.getElementById(name);

function move(step) {
  const next = report.epochs[report.epochs.indexOf(state.epoch) + step];
  if (next !== undefined) change({ epoch: next });
}

// Arrow keys move the epoch from anywhere but a field that needs them itself.
function key(event) {
  if (event.key === "Escape") change({ unit: null });
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || event.target.closest("input, select, button, summary, .scroll") || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  move(step);
}

function chooseRun(i) {
  const next = report.runs[i].path;
  const same = next && path() ? next.layers.findIndex((one) => one.name === layer().name) : -1;
  change({ run: i, unit: null, layer: same >= 0 ? same : next?.layer ?? 0 });
}

function toggleTheme() {
  const { dataset } = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
}

function makeControls() {
  byId("epoch").max = report.epochs.length - 1;
  byId("epoch").oninput = (event) => change({ epoch: report.epochs[+event.target.value] });
  byId("run").append(...report.runs.map((one, i) => new Option(one.name, i)));
  byId("run").closest("label").hidden = report.runs.length < 2;
  byId("run").onchange = (event) => chooseRun(+event.target.value);
  byId("layer").onchange = (event) => change({ layer: +event.target.value, unit: null });
  byId("unit").onchange = ({ target }) => change({ unit: target.value === "" ? null : +target.value });
  byId("theme").onclick = toggleTheme;
  document.addEventListener("keydown", key);
  byId("controls").hidden = false;
}

function updateControls(what) {
  const all = what.has("all") || what.has("run");
  if (all) {
    for (const name of ["layer", "unit"]) byId(name).closest("label").hidden = !path();
    byId("layer").replaceChildren(...(path()?.layers ?? []).map((one, i) => new Option(`${one.short} (${one.rows} ${one.word}s)`, i)));
    byId("summary").replaceChildren(...run().summary.map((text) => element("p", {}, text)));
  }
  if (path() && (all || what.has("layer"))) {
    const units = unitsOf(layer()).map((unit) => new Option(`${layer().word} ${unit - layer().start}`, unit));
    byId("unit").replaceChildren(new Option("none", ""), ...units);
  }
  byId("layer").value = state.layer;
  byId("unit").value = state.unit ?? "";
  byId("run").value = state.run;
  byId("epoch").value = report.epochs.indexOf(state.epoch);
  byId("epoch").setAttribute("aria-valuetext", `epoch ${state.epoch}`);
  byId("epoch-out").textContent = state.epoch;
}

// The numbers of the chosen epoch, in large.
function updateFigures() {
  const one = run();
  const p = one.path;
  const epoch = recordEpoch(one);
  const density = p ? p.density[snapshot] : recordAt(one, "density");
  const sparse = recordAt(one, "recalibrated_accuracy") ?? recordAt(one, "sparse_accuracy");
  const accuracy = (value) => (value === null ? "–" : `${value.toFixed(2)}\u00a0%`);
  const values = {
    "at epoch": epoch === state.epoch ? null : epoch, // the run ended before
    [one.whole]: accuracy(recordAt(one, "accuracy")),
    "support alone": p || sparse !== null ? accuracy(sparse) : null,
    "kept by the mask": p && one.mask_density !== null ? percent(one.mask_density) : null,
    density: density === null ? null : percent(density),
    "training loss": short(recordAt(one, "train_loss"), 3),
    "coupling gap": p ? short(p.gap[snapshot], 3) : null,
  };
  const known = Object.entries(values).filter(([, value]) => value !== null);
  byId("figures").replaceChildren(...known.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

async function start() {
  const specs = { paths: pathsSpec, entries: entriesSpec, next: nextSpec, densities: densitiesSpec, filters: filtersSpec };
  report = await decode();
  state.run = Math.max(report.runs.findIndex((one) => one.path), 0);
  state.epoch = report.epochs.at(-1);
  state.layer = path()?.layer ?? 0;
  document.body.append(tooltip);
  makeControls();
  const panels = [...document.querySelectorAll(".panel")].map(
    (figure) => new Panel(figure, specs[figure.dataset.key] || chartSpec(report.charts[figure.dataset.key]))
  );
  listeners.push(updateControls, updateFigures, (what) => panels.forEach((panel) => panel.update(what)));
  changed.add("all");
  tell();
  document.documentElement.classList.add("live");
  window.dessilbiReport = { state, change, panels, report }; // for tests, and for those who open the console
  document.documentElement.dataset.ready = "1";
}

start().catch((error) => {
  for (const made of document.querySelectorAll(".panel > :not(figcaption)")) made.remove();
  document.querySelector(".panels").prepend(element("p", { className: "notes" }, "This browser cannot draw the panels; one from 2025 on can."));
  console.error(error);
});
