// The bar on top: run, layer, filter, epoch, light or dark.

const controls = {
  make() {
    this.bar = document.getElementById("controls");
    this.epoch = document.getElementById("epoch");
    this.epochOut = document.getElementById("epoch-out");
    this.run = document.getElementById("run");
    this.layer = document.getElementById("layer");
    this.unit = document.getElementById("unit");
    this.play = document.getElementById("play");
    this.epoch.max = report.epochs.length - 1;
    this.epoch.addEventListener("input", () => change({ epoch: report.epochs[+this.epoch.value] }));
    report.runs.forEach((one, i) => this.run.append(new Option(one.name, i)));
    this.run.closest("label").hidden = report.runs.length < 2;
    this.run.addEventListener("change", () => chooseRun(+this.run.value));
    this.layer.addEventListener("change", () => change({ layer: +this.layer.value, unit: null }));
    this.unit.addEventListener("change", () => change({ unit: this.unit.value === "" ? null : +this.unit.value }));
    this.play.addEventListener("click", () => this.toggle());
    document.getElementById("theme").addEventListener("click", toggleTheme);
    document.addEventListener("keydown", (event) => this.key(event));
    this.bar.hidden = false;
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

  toggle() {
    if (this.timer) return this.stop();
    if (state.epoch === report.epochs[report.epochs.length - 1]) change({ epoch: report.epochs[0] });
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "Pause");
    const pause = Math.min(400, 8000 / report.epochs.length);
    this.timer = setInterval(() => {
      this.move(1);
      if (state.epoch === report.epochs[report.epochs.length - 1]) this.stop();
    }, pause);
    return undefined;
  },

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "Play through the epochs");
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
    this.epochOut.textContent = state.epoch;
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
  const root = document.documentElement;
  root.dataset.theme = colours.dark ? "light" : "dark";
  readColours();
  atlases.clear();
  changed.add("all");
  tell();
}

// The numbers of the chosen epoch, in large.
function updateFigures() {
  const one = run();
  const p = one.path;
  const mark = p ? markAt(p.epochs) : 0;
  const density = p ? p.density[mark] : recordAt(one, "density");
  const sparse = recordAt(one, "recalibrated_accuracy") ?? recordAt(one, "sparse_accuracy");
  const epoch = recordEpoch(one);
  const values = {
    "at epoch": epoch === state.epoch ? null : epoch, // the run ended before
    [one.whole]: points(recordAt(one, "accuracy")),
    "support alone": one.path || sparse !== null ? points(sparse) : null,
    "kept by the mask": p && one.mask_density !== null ? percent(one.mask_density) : null,
    density: density === null ? null : percent(density),
    "training loss": short(recordAt(one, "train_loss"), 3),
    "coupling gap": p ? short(p.gap[mark], 3) : null,
  };
  const list = document.getElementById("figures");
  list.replaceChildren(
    ...Object.entries(values)
      .filter(([, value]) => value !== null)
      .map(([name, value]) => {
        const item = document.createElement("div");
        const [term, number] = [document.createElement("dt"), document.createElement("dd")];
        [term.textContent, number.textContent] = [name, value];
        item.append(term, number);
        return item;
      })
  );
}

function updateSummary() {
  const sentences = run().summary.map((text) => {
    const p = document.createElement("p");
    p.textContent = text;
    return p;
  });
  document.getElementById("summary").replaceChildren(...sentences);
}
