// Put the panels up; if anything goes wrong the still figures stay.

const SPECS = {
  paths: pathsSpec, entries: entriesSpec, next: nextSpec, densities: densitiesSpec, filters: filtersSpec, overlap: overlapSpec,
};

// Panels that show one run's path are hidden while a run without one is chosen.
const OF_A_PATH = ["paths", "entries", "next", "filters", "overlap", "between"];

function shown(panel) {
  const one = run();
  if (OF_A_PATH.includes(panel.key)) return Boolean(one.path) && (panel.key !== "filters" || one.path.checkpoints.length > 0);
  if (panel.key === "densities") return Boolean(one.path) || Object.keys(one.densities).length > 0;
  return true;
}

async function start() {
  report = await decode();
  readColours();
  const first = Math.max(report.runs.findIndex((one) => one.path), 0);
  state.run = first;
  state.epoch = report.epochs[report.epochs.length - 1];
  if (path()) state.layer = path().layer;
  document.documentElement.classList.add("live");
  tooltip.make();
  controls.make();
  const panels = [...document.querySelectorAll(".panel")].map((figure) => {
    const { key } = figure.dataset;
    return new Panel(figure, SPECS[key] || chartSpec(report.charts[key]));
  });
  listeners.push(
    (what) => controls.update(what),
    updateFigures,
    (what) => (what.has("all") || what.has("run")) && updateSummary(),
    (what) => {
      for (const panel of panels) {
        const on = shown(panel);
        const was = !panel.figure.hidden;
        panel.figure.hidden = !on;
        if (on) panel.update(was ? what : new Set(["all"]));
      }
    }
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  changed.add("all");
  tell();
  // For tests, and for those who open the console.
  window.dessilbiReport = { state, change, panels, report };
  document.documentElement.dataset.ready = "1";
}

start().catch((error) => {
  document.documentElement.classList.remove("live");
  console.error(error);
});
