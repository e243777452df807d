"""The paper's numbers next to a run's own, where the paper has the run's setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dessilbi.paper.published import (
    CLASSIFICATION,
    EPOCHS,
    KAPPA,
    KAPPA_EPOCHS,
    LAYERS_CONV_2,
    LAYERS_CONV_4,
    LAYERS_LENET_3,
    NU,
    NU_EPOCHS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dessilbi.paper.published import PublishedTable
    from dessilbi.report.run_data import RunData

    Row = dict[str, str]

_LAYERS = {
    "lenet-300-100": LAYERS_LENET_3, "lenet-3": LAYERS_LENET_3, "conv-2": LAYERS_CONV_2,
    "conv-4": LAYERS_CONV_4,
}  # fmt: skip


def compare(run: RunData) -> list[Row]:
    """Rows of ours against the paper: where, what, theirs, ours, difference; all in percent."""
    if run.config["start"] is not None or run.config["method"]["name"] == "gradual-pruning":
        return []  # subnetworks and pruned runs are other experiments
    rows = [*_classification(run), *_ablation(run), *_layers(run)]
    return [row for row in rows if row is not None]


def method(run: RunData) -> str:
    """What the paper calls an optimizer and its options."""
    options = run.config["optimizer"]
    name = str(options["name"])
    if name not in ("sgd", "dessilbi") or options["base"] != "sgd":
        return name if options["base"] == "sgd" else f"{name}-{options['base']}"
    if options["l1"]:
        return f"{name}-l1"
    if not options["momentum"]:
        return f"{name}-naive"
    if name == "sgd" and options["nesterov"]:
        return "sgd-nesterov"
    return f"{name}-mom-wd" if options["weight_decay"] else f"{name}-mom"


def _row(table: PublishedTable, what: str, theirs: float | None, ours: float | None) -> Row | None:
    if theirs is None or ours is None:
        return None
    numbers = {"paper, %": f"{theirs:.2f}", "ours, %": f"{ours:.2f}"}
    where = {"where in the paper": table.title, "what": what}
    return {**where, **numbers, "difference, points": f"{ours - theirs:+.2f}"}


def _classification(run: RunData) -> Iterator[Row | None]:
    column = f"{run.config['model']['name']} {run.config['data']['name']}"
    if column in CLASSIFICATION.columns and method(run) in CLASSIFICATION.rows:
        theirs = CLASSIFICATION.value(method(run), column)
        what = f"accuracy of {method(run)}, ours after {run.done} epochs"
        yield _row(CLASSIFICATION, what, theirs, run.last.get("accuracy"))


def _ablation(run: RunData) -> Iterator[Row | None]:
    """VGG-16 and ResNet-56 on CIFAR-10, by kappa and nu."""
    model, options = run.config["model"]["name"], run.config["optimizer"]
    if run.config["data"]["name"] != "cifar10" or f"full/{model}" not in KAPPA.rows:
        return
    if options["name"] == "sgd":
        theirs = KAPPA.value(f"full/{model}", "sgd")
        yield _row(KAPPA, "best accuracy", theirs, _best(run, "accuracy"))
        return
    if options["name"] != "dessilbi" or options["base"] != "sgd" or options["nu"] is None:
        return
    kappa, nu = f"kappa={options['kappa']:g}", f"nu={options['nu']:g}"
    if options["nu"] == 100 and kappa in KAPPA.columns:
        table, along, column = KAPPA, KAPPA_EPOCHS, kappa
    elif options["kappa"] == 1 and nu in NU.columns:
        table, along, column = NU, NU_EPOCHS, nu
    else:
        return
    for kind, name in (("full", "accuracy"), ("sparse", "sparse_accuracy")):
        theirs = table.value(f"{kind}/{model}", column)
        yield _row(table, f"best accuracy, {kind}, {column}", theirs, _best(run, name))
    for epoch in EPOCHS:
        record = run.record(epoch)
        density = record.get("density")
        for what, ours in (
            ("density", None if density is None else 100 * density),
            ("accuracy", record.get("sparse_accuracy")),
        ):
            theirs = along.value(f"{model}/{column}", f"epoch {epoch} {what}")
            yield _row(along, f"{what} of the support, epoch {epoch}", theirs, ours)


def _best(run: RunData, name: str) -> float | None:
    return max((r[name] for r in run.records if r.get(name) is not None), default=None)


def _layers(run: RunData) -> Iterator[Row | None]:
    """Density of each layer at the end; layers are matched by their order and size."""
    table = _LAYERS.get(run.config["model"]["name"])
    if table is None or run.path is None or run.config["data"]["name"] != "mnist":
        return
    if tuple(float(layer.numel) for layer in run.path.layers) != table.rows["weights"]:
        return
    for layer, theirs in zip(run.path.layers, table.rows["density"], strict=True):
        ours = 100 * run.path.density(run.path.epochs[-1], layer.name)
        yield _row(
            table, f"density of {layer.name}", None if theirs is None else 100 * theirs, ours
        )
