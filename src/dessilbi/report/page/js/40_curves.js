// Accuracy and loss of all runs.

function recorded(kinds) {
  const many = report.runs.length > 1;
  return report.runs.flatMap((one, i) =>
    kinds
      .filter(({ name }) => one.records[name].some((value) => value !== null))
      .map(({ name, label, colour, dash }) => ({
        label: many ? `${one.name}: ${label(one)}` : label(one),
        colour: many ? runColour(i) : colour(),
        dash,
        wide: many && i === state.run,
        x: one.records.epoch,
        y: one.records[name],
      }))
  );
}

const ACCURACIES = [
  { name: "accuracy", label: (one) => one.whole, colour: () => colours.ink, dash: [] },
  { name: "recalibrated_accuracy", label: () => "support, recalibrated", colour: () => colours.inside, dash: [6, 3] },
  { name: "sparse_accuracy", label: () => "support", colour: () => colours.runs[2], dash: [2, 3] },
];

const LOSSES = [
  { name: "train_loss", label: () => "training", colour: () => colours.ink, dash: [] },
  { name: "loss", label: () => "held out", colour: () => colours.runs[1], dash: [6, 3] },
];

const accuracySpec = curvesSpec({
  series: () => recorded(ACCURACIES),
  yLabel: () => `accuracy, % of the ${run().judged_on} images`,
  zoom: "top 5 points",
  zoomTo: 5,
  unit: " %",
  readout() {
    const value = (name) => recordAt(run(), name);
    const epoch = recordEpoch(run());
    if (value("accuracy") === null) return `Epoch ${epoch}: not evaluated.`;
    const sparse = value("recalibrated_accuracy") ?? value("sparse_accuracy");
    const rest = sparse === null ? "" : `, the support alone ${points(sparse)}`;
    return `Epoch ${epoch}: ${run().whole} ${points(value("accuracy"))}${rest}.`;
  },
});

const lossSpec = curvesSpec({
  series: () => recorded(LOSSES),
  yLabel: () => "cross entropy, nats an image",
  floor: 0,
  readout() {
    const value = recordAt(run(), "train_loss");
    const rate = recordAt(run(), "lr");
    const epoch = recordEpoch(run());
    if (value === null) return `Epoch ${epoch}: no loss recorded.`;
    return `Epoch ${epoch}: training loss ${short(value, 3)}${rate === null ? "" : `, learning rate ${short(rate, 3)}`}.`;
  },
});
