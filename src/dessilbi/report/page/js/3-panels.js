// A panel, and the panels of curves and points, which charts.py describes. A spec says how:
//   needs          names in `state` that the picture depends on, by default the run
//   shown          whether the chosen run has something to show
//   choices        selections of the panel's own, [{name, label, options: [[value, text]]}]
//   draw, mark     the picture into `panel.body`; what the slider and the chosen filter add to it
//   hit            what lies under the pointer: {title, lines, unit, layer, epoch}
//   legend, readout    what it says beside the picture

class Panel {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.key = figure.dataset.key;
    this.log = figure.dataset.log === "2";
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
    if (this.figure.dataset.log !== "0") found.push(this.box("log", "log axis"));
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

function drawSeries(one, scales, wide) {
  const d = polyline(one.x, one.y, scales);
  const mark = one.mark || (one.x.length === 1 ? "disc" : "");
  const points = mark && spots(one.x, one.y, scales);
  return `<g style="color:var(--${one.colour})"><path class="line ${one.dash}${wide ? " wide" : ""}" d="${d}"/>
    <path class="${mark} under" d="${points}"/><path class="${mark}" d="${points}"/></g>`;
}

function drawChart(panel, chart, series) {
  const overEpochs = chart.xlabel === "epoch";
  const x = overEpochs ? epochScale(report.epochs) : chartAxis(panel, chart, "x", series.map((one) => one.x));
  const y = chartAxis(panel, chart, "y", series.map((one) => one.y));
  const chosen = (one) => report.runs.length > 1 && one.run === state.run;
  const markup = series.map((one) => drawSeries(one, { x, y }, chosen(one))).join("");
  return Object.assign(makePlot(x, y, chart.xlabel, chart.ylabel, markup), { chart, series, overEpochs });
}

// Where the curves are at the chosen epoch; a run may have ended before.
function markChart(plot) {
  const { x, y, series, overEpochs, marks } = plot;
  const epochs = (one) => (overEpochs ? one.x : one.epochs ?? []);
  const found = series
    .map((one) => [one, overEpochs ? one.x.indexOf(state.epoch) : epochs(one).findLastIndex((epoch) => epoch <= state.epoch)])
    .filter(([one, i]) => i >= 0 && one.y[i] !== null && y(one.y[i]) >= 0)
    .map(([one, i]) => dot(x(one.x[i]), y(one.y[i]), overEpochs ? `var(--${one.colour})` : "var(--ink)"));
  marks.replaceChildren(...(overEpochs ? [cursor(x(state.epoch))] : []), ...found);
}

function valuesAt(series, epoch, unit, label = (one) => one.label) {
  return series
    .filter((one) => (one.y[one.x.indexOf(epoch)] ?? null) !== null)
    .map((one) => `${label(one)}: ${short(one.y[one.x.indexOf(epoch)])}${unit}`);
}

function hitChart(panel, event) {
  const plot = event.target.closest(".plot");
  if (!plot) return null;
  const { x, y, box } = pointer(event, plot);
  if (plot.overEpochs) {
    const away = (epoch) => Math.abs(epoch - plot.x.invert(x));
    const epoch = report.epochs.reduce((a, b) => (away(b) < away(a) ? b : a));
    const lines = valuesAt(plot.series, epoch, plot.chart.unit);
    return lines.length ? { title: `epoch ${epoch}`, lines, epoch } : null;
  }
  let [best, distance] = [null, 16];
  for (const one of plot.series) {
    one.x.forEach((value, i) => {
      const gap = Math.hypot((plot.x(value) - x) * box.width, (plot.y(one.y[i]) - y) * box.height);
      if (gap < distance) [best, distance] = [{ title: one.label, lines: one.words[i], epoch: one.epochs?.[i] }, gap];
    });
  }
  return best;
}

function chartSpec({ charts, alternatives, of_a_run: ofARun }) {
  const seriesOf = (chart) => chart.series.filter((one) => !ofARun || one.run === state.run);
  return {
    zoom: charts[0].zoom && `top ${charts[0].zoom} points`,
    choices: alternatives ? [{ name: "which", label: "measure of size", options: charts.map((chart, i) => [i, chart.title]) }] : [],
    shown: () => charts.some((chart) => seriesOf(chart).length),
    draw(panel) {
      const found = alternatives ? [charts[panel.options.which]] : charts;
      panel.plots = found.map((chart) => drawChart(panel, chart, seriesOf(chart)));
      panel.body.append(...panel.plots);
    },
    mark: (panel) => panel.plots.forEach(markChart),
    hit: hitChart,
    legend(panel) {
      const { series, overEpochs } = panel.plots[0];
      if (panel.plots.length > 1 && series.length < 2) return []; // the titles say it
      const found = series.map((one) => [one.label, one.mark && one.mark !== "dot" ? one.mark : one.dash, one.colour]);
      return overEpochs ? found : [...found, ["the chosen epoch", "disc", "ink"]];
    },
    readout(panel) {
      if (charts[0].readouts) return charts[0].readouts[state.run];
      const epoch = recordEpoch(run());
      const found = panel.plots.flatMap(({ chart, series }) => {
        const label = (one) => (panel.plots.length > 1 ? chart.title : one.label.replace(`${run().name}: `, ""));
        return valuesAt(series.filter((one) => one.run === state.run), epoch, chart.unit, label);
      });
      return `Epoch ${epoch}: ${found.join(" · ") || "nothing was measured"}.`;
    },
  };
}
