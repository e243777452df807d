// The bar on top: run, layer, filter, epoch, light or dark.

const controls = {
  make() {
    for (const name of ["controls", "epoch", "epoch-out", "run", "layer", "unit", "play", "theme"]) {
      this[name] = document.getElementById(name);
    }
    this.epoch.max = report.epochs.length - 1;
    this.epoch.oninput = () => change({ epoch: report.epochs[+this.epoch.value] });
    this.run.append(...report.runs.map((one, i) => new Option(one.name, i)));
    this.run.closest("label").hidden = report.runs.length < 2;
    this.run.onchange = () => chooseRun(+this.run.value);
    this.layer.onchange = () => change({ layer: +this.layer.value, unit: null });
    this.unit.onchange = () => change({ unit: this.unit.value === "" ? null : +this.unit.value });
    this.play.onclick = () => (this.timer ? this.stop() : this.start());
    this.theme.onclick = toggleTheme;
    document.addEventListener("keydown", (event) => this.key(event));
    this.controls.hidden = false;
  },

  // Arrow keys move the epoch from anywhere but a field that needs them itself.
  key(event) {
    if (event.key === "Escape") return change({ unit: null });
    if (event.target.closest("input, select, button, summary, .scroll") || event.altKey || event.ctrlKey || event.metaKey) return undefined;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return undefined;
    event.preventDefault();
    return this.move(step);
  },

  move(step) {
    const at = report.epochs.indexOf(state.epoch) + step;
    if (at >= 0 && at < report.epochs.length) change({ epoch: report.epochs[at] });
  },

  start() {
    const last = report.epochs.at(-1);
    if (state.epoch === last) change({ epoch: report.epochs[0] });
    [this.play.textContent, this.play.ariaLabel] = ["❚❚", "Pause"];
    this.timer = setInterval(() => {
      this.move(1);
      if (state.epoch === last) this.stop();
    }, Math.min(400, 8000 / report.epochs.length));
  },

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    [this.play.textContent, this.play.ariaLabel] = ["▶", "Play through the epochs"];
  },

  update(what) {
    const all = what.has("all") || what.has("run");
    if (all) this.fillLayers();
    if (all || what.has("layer")) this.fillUnits();
    if (path()) {
      this.layer.value = state.layer;
      this.unit.value = state.unit === null ? "" : state.unit;
    }
    this.run.value = state.run;
    this.epoch.value = report.epochs.indexOf(state.epoch);
    this.epoch.setAttribute("aria-valuetext", `epoch ${state.epoch}`);
    this["epoch-out"].textContent = state.epoch;
  },

  fillLayers() {
    const found = path() ? path().layers : [];
    this.layer.replaceChildren(...found.map((one, i) => new Option(`${one.short} (${one.rows} ${one.word}s)`, i)));
    this.layer.closest("label").hidden = !found.length;
    this.unit.closest("label").hidden = !found.length;
  },

  fillUnits() {
    if (!path()) return;
    const units = layerUnits().map((unit) => new Option(`${layer().word} ${unit - layer().start}`, unit));
    this.unit.replaceChildren(new Option("none", ""), ...units);
  },
};

function chooseRun(i) {
  const next = report.runs[i];
  const kept = next.path && path() ? next.path.layers.findIndex((one) => one.name === layer().name) : -1;
  change({ run: i, unit: null, layer: kept >= 0 ? kept : next.path ? next.path.layer : 0 });
}

function toggleTheme() {
  document.documentElement.dataset.theme = colours.dark ? "light" : "dark";
  recolour();
}

function recolour() {
  readColours();
  atlases.clear();
  changed.add("all");
  tell();
}

// The numbers of the chosen epoch, in large.
function updateFigures() {
  const one = run();
  const p = one.path;
  const snapshot = p ? snapshotAt(p.epochs) : 0;
  const density = p ? p.density[snapshot] : recordAt(one, "density");
  const sparse = recordAt(one, "recalibrated_accuracy") ?? recordAt(one, "sparse_accuracy");
  const epoch = recordEpoch(one);
  const values = {
    "at epoch": epoch === state.epoch ? null : epoch, // the run ended before
    [one.whole]: points(recordAt(one, "accuracy")),
    "support alone": one.path || sparse !== null ? points(sparse) : null,
    "kept by the mask": p && one.mask_density !== null ? percent(one.mask_density) : null,
    density: density === null ? null : percent(density),
    "training loss": short(recordAt(one, "train_loss"), 3),
    "coupling gap": p ? short(p.gap[snapshot], 3) : null,
  };
  const items = Object.entries(values)
    .filter(([, value]) => value !== null)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  document.getElementById("figures").replaceChildren(...items);
}

function updateSummary() {
  document.getElementById("summary").replaceChildren(...run().summary.map((text) => element("p", {}, text)));
}
