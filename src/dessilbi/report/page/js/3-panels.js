// A panel, and the panels of curves and points, which charts.py describes. A spec says how:
//   needs          names in `state` that the picture depends on, by default the run
//   shown          whether the chosen run has something to show
//   choices        selections of the panel's own, [{name, label, options: [[value, text]]}]
//   log, logFirst, zoom    whether an axis can be logarithmic, and is at first; words for a narrowed one
//   draw, mark     the picture into `panel.body`; what the slider and the chosen filter add to it
//   hit            what lies under the pointer: {title, lines, unit, layer, epoch}
//   legend, readout    what it says beside the picture

class Panel {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.key = figure.dataset.key;
    this.log = Boolean(spec.logFirst);
    this.zoom = false;
    this.options = Object.fromEntries((spec.choices || []).map(({ name, options }) => [name, options[0][0]]));
    this.readout = element("p", { className: "readout" });
    this.legend = element("div", { className: "legend" });
    this.body = element("div", { className: `body ${this.key}`, role: "img", ariaLabel: figure.querySelector("h2").textContent });
    this.body.onpointermove = (event) => this.hover(event);
    this.body.onpointerleave = hideTooltip;
    this.body.onclick = (event) => this.click(event);
    figure.append(element("div", { className: "tools" }, ...this.tools()), this.readout, this.legend, this.body);
  }

  tools() {
    const found = (this.spec.choices || []).map((choice) => this.choice(choice));
    if (this.spec.log) found.push(this.box("log", "log axis"));
    if (this.spec.zoom) found.push(this.box("zoom", this.spec.zoom));
    return found;
  }

  box(name, text) {
    const onchange = (event) => {
      this[name] = event.target.checked;
      this.draw();
    };
    return element("label", {}, element("input", { type: "checkbox", name, checked: this[name], onchange }), text);
  }

  choice({ name, label, options }) {
    const onchange = (event) => {
      this.options[name] = event.target.value;
      this.draw();
    };
    const entries = options.map(([value, text]) => new Option(text, value));
    return element("select", { name, ariaLabel: `${this.body.ariaLabel}: ${label}`, onchange }, ...entries);
  }

  update(what) {
    const hidden = this.figure.hidden;
    this.figure.hidden = !(this.spec.shown ? this.spec.shown() : true);
    if (this.figure.hidden) return;
    if (hidden || what.has("all") || (this.spec.needs || ["run"]).some((name) => what.has(name))) this.draw();
    else this.mark();
  }

  draw() {
    this.body.replaceChildren();
    this.spec.draw(this);
    const entries = this.spec.legend ? this.spec.legend(this) : [];
    this.legend.replaceChildren(...entries.map(([text, look, colour]) => {
      return element("span", {}, element("i", { className: look, style: `color:var(--${colour})` }), text);
    }));
    this.mark();
  }

  mark() {
    if (this.spec.mark) this.spec.mark(this);
    for (const one of this.body.querySelectorAll(".chosen")) one.classList.remove("chosen");
    for (const one of this.body.querySelectorAll(`[data-unit="${state.unit}"]`)) one.classList.add("chosen");
    this.body.classList.toggle("some", state.unit !== null);
    this.readout.textContent = this.spec.readout(this);
  }

  find(event) {
    const { unit } = event.target.closest("[data-unit]")?.dataset ?? {};
    return unit ? aboutUnit(+unit) : this.spec.hit?.(this, event);
  }

  hover(event) {
    const found = this.find(event);
    const leads = found && (found.unit ?? found.layer ?? found.epoch) !== undefined;
    this.body.style.cursor = leads ? "pointer" : "";
    if (found) showTooltip(found, event);
    else hideTooltip();
  }

  click(event) {
    const { unit, layer: index, epoch } = this.find(event) ?? {};
    if (unit !== undefined) selectUnit(unit);
    else if (index !== undefined) change({ layer: index, unit: null });
    else if (epoch !== undefined) change({ epoch });
  }
}

// ---------------------------------------------------------------- curves and points

function chartAxis(panel, chart, name, lists) {
  const log = panel.log && chart.log === name;
  let [low, high] = extent(lists, log);
  if (log) return scale(low / 1.15, high * 1.15, true);
  const floor = name === "x" ? 0 : chart.floor;
  if (name === "y" && panel.zoom) low = Math.max(low, high - chart.zoom);
  const room = (high - low || 1) * 0.05;
  return scale(floor === null ? low - room : Math.min(low, floor), high + room);
}

function drawSeries(one, scales) {
  const wide = report.runs.length > 1 && one.run === state.run;
  const mark = one.mark || (one.x.length === 1 ? "disc" : "");
  const points = mark && spots(one.x, one.y, scales);
  return `<g style="color:var(--${one.colour})"><path class="${one.dash}${wide ? " wide" : ""}" d="${polyline(one.x, one.y, scales)}"/>
    <path class="${mark} under" d="${points}"/><path class="${mark}" d="${points}"/></g>`;
}

function valuesAt(series, epoch, unit) {
  return series
    .filter((one) => (one.y[one.x.indexOf(epoch)] ?? null) !== null)
    .map((one) => `${one.label}: ${short(one.y[one.x.indexOf(epoch)])}${unit}`);
}

function nearestPoint({ series, xlabel, ylabel }, { x, y }, spot) {
  let [best, distance] = [null, 16];
  for (const one of series) {
    one.x.forEach((value, i) => {
      const gap = Math.hypot((x(value) - spot.x) * spot.box.width, (y(one.y[i]) - spot.y) * spot.box.height);
      if (gap >= distance) return;
      const lines = [`${xlabel}: ${short(value)}`, `${ylabel}: ${short(one.y[i])}`];
      [best, distance] = [{ title: one.label, lines, epoch: one.epochs?.[i] }, gap];
    });
  }
  return best;
}

// One chart, or some to choose from.
function chartSpec(charts) {
  const [{ log, log_first: logFirst, zoom, readouts, xlabel }] = charts;
  const overEpochs = xlabel === "epoch";
  return {
    log, logFirst,
    zoom: zoom && `top ${zoom} points`,
    choices: charts.length > 1 ? [{ name: "which", label: "measure of size", options: charts.map((chart, i) => [i, chart.xlabel.split(",")[0]]) }] : [],
    draw(panel) {
      const chart = (panel.chart = charts[panel.options.which ?? 0]);
      const axis = (name) => chartAxis(panel, chart, name, chart.series.map((one) => one[name]));
      const scales = { x: overEpochs ? epochScale(report.epochs) : axis("x"), y: axis("y") };
      const markup = chart.series.map((one) => drawSeries(one, scales)).join("");
      panel.plot = makePlot(scales.x, scales.y, chart.xlabel, chart.ylabel, markup);
      panel.body.append(panel.plot);
    },
    // Where the curves are at the chosen epoch; a run may have ended before.
    mark({ chart, plot: { x, y, marks } }) {
      const index = (one) => (overEpochs ? one.x.indexOf(state.epoch) : (one.epochs ?? []).findLastIndex((epoch) => epoch <= state.epoch));
      const seen = chart.series.map((one) => [one, index(one)]).filter(([one, i]) => i >= 0 && one.y[i] !== null && y(one.y[i]) >= 0);
      const dots = seen.map(([one, i]) => dot(x(one.x[i]), y(one.y[i]), `var(--${overEpochs ? one.colour : "ink"})`));
      marks.replaceChildren(...(overEpochs ? [cursor(x(state.epoch))] : []), ...dots);
    },
    hit({ chart, plot }, event) {
      const spot = pointer(event, plot);
      if (!overEpochs) return nearestPoint(chart, plot, spot);
      const away = (epoch) => Math.abs(epoch - plot.x.invert(spot.x));
      const epoch = report.epochs.reduce((a, b) => (away(b) < away(a) ? b : a));
      const lines = valuesAt(chart.series, epoch, chart.unit);
      return lines.length ? { title: `epoch ${epoch}`, lines, epoch } : null;
    },
    legend({ chart: { series } }) {
      const found = series.map((one) => [one.label, one.mark && one.mark !== "dot" ? one.mark : one.dash, one.colour]);
      if (!overEpochs) return [...found, ["the chosen epoch", "disc", "ink"]];
      return series.length > 1 ? found : [];
    },
    readout({ chart: { series, unit } }) {
      if (readouts) return readouts[state.run];
      const epoch = recordEpoch(run());
      const values = valuesAt(series.filter((one) => one.run === state.run), epoch, unit);
      return `Epoch ${epoch}: ${values.join(" · ").replaceAll(`${run().name}: `, "") || "nothing was measured"}.`;
    },
  };
}
