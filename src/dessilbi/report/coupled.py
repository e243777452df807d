"""Which layers' filters enter Gamma together, told from what a path recorded of them.

The configuration says that there are such layers (``--optimizer.coupled``), nothing says which. But
slice i of coupled layers is one group: it has one threshold, which is for the joint norm of V, and
enters and leaves all of them at the same steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dessilbi.path import Layer, SolutionPath


class Coupling(NamedTuple):
    """Names of layers."""

    partners: dict[str, tuple[str, ...]]
    """The others that a layer's filters enter with."""
    unknown: frozenset[str]
    """Layers that may or may not have partners: what was recorded does not tell."""


def find_coupling(path: SolutionPath) -> Coupling:
    """The layers that are coupled, as far as it can be told."""
    if path.strengths is None:
        return Coupling({}, frozenset(layer.name for layer in path.layers if layer.exact))
    alike: dict[tuple[object, ...], list[Layer]] = {}
    for layer in path.layers:
        if layer.exact:
            alike.setdefault(_fate(path, layer), []).append(layer)
    partners: dict[str, tuple[str, ...]] = {}
    unknown: set[str] = set()
    for layers in alike.values():
        names = [layer.name for layer in layers]
        if len(layers) < 2:
            continue
        if _shown(path, layers):
            partners |= {name: tuple(n for n in names if n != name) for name in names}
        else:
            unknown |= set(names)
    return Coupling(partners, frozenset(unknown))


def joint_norms(norms: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The norms of groups that are put together from parts, given the norms of the parts."""
    joint: NDArray[np.float32] = np.linalg.norm(np.stack(norms), axis=0)
    return joint


def _fate(path: SolutionPath, layer: Layer) -> tuple[object, ...]:
    """Thresholds, and who entered and left when: the same for coupled layers."""
    assert path.strengths is not None
    lambd, kappa = path.strengths.thresholds[layer.name], path.strengths.kappa[layer.name]
    events = path.events(layer.name)
    return layer.groups, kappa, lambd.tobytes(), *(part.numpy().tobytes() for part in events)


def _shown(path: SolutionPath, layers: Sequence[Layer]) -> bool:
    """Whether layers of the same fate are coupled, not merely alike because nothing happened."""
    assert path.strengths is not None
    first = layers[0].name
    lambd, kappa = path.strengths.thresholds[first], path.strengths.kappa[first]
    # Thresholds that differ from filter to filter are initial norms: no two sets have the same.
    if not len(path.events(first).steps) and len(np.unique(lambd)) < 2:
        return False
    for epoch in path.epochs:
        norms = [path.norms(epoch, layer.name) for layer in layers]
        joint = joint_norms([n.V.numpy() for n in norms])
        shrinkage = kappa * np.maximum(0, 1 - lambd / np.maximum(joint, 1e-30))
        for own in norms:
            expected = shrinkage * own.V.numpy()
            near = np.isclose(own.Gamma.numpy(), expected, rtol=1e-3, atol=1e-5 * kappa)
            if not near.all():
                return False
    return True
