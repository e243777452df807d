"""One epoch as batches: which images, in which order, for which rank, from which batch on.

Everything follows from (seed, epoch): a run that stops in the middle of an epoch continues it with
``start`` and sees the same numbers, bit for bit.
"""

from collections.abc import Iterator

import torch

from dessilbi.lab.data.augment import Augmentation, draw_epoch, seeded
from dessilbi.lab.data.splits import Batch, Split

_ORDER = 0


def count_batches(images: int, batch_size: int, *, drop_last: bool = False) -> int:
    """How many batches one epoch of ``images`` images has."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    return images // batch_size if drop_last else -(-images // batch_size)


def batches(
    split: Split,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    augment: Augmentation | None = None,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
) -> Iterator[Batch]:
    """Iterate over one epoch of ``split`` as (images, labels).

    With ``world_size`` > 1 a rank gets its contiguous share of every global batch, so the union
    over ranks, in rank order, is the batch that one process would see. Shares of a batch that does
    not divide evenly differ by one image; for gradients equal to the single process's, average
    with the shares' sizes as weights, or choose a divisible ``batch_size`` and ``drop_last``.

    Args:
        split: Where the images are.
        batch_size: Images in a global batch, all ranks together.
        seed: Seed of the run.
        epoch: Epoch number; order and augmentation depend on (seed, epoch) and nothing else.
        shuffle: Permute the images; False keeps their order.
        augment: Augmentation to apply, e.g. ``dataset.augmentation``.
        drop_last: Leave out a last batch that is not full.
        rank: This process's number.
        world_size: Number of processes that share each batch.
        start: First batch to yield, to continue an interrupted epoch.

    Raises:
        ValueError: An argument is out of range, or some rank's share of the last batch is empty.
    """
    if augment is not None and not isinstance(augment, split.takes):
        raise TypeError(f"this set takes augment={split.takes.__name__}() or None, got {augment}")
    images = len(split)
    count = count_batches(images, batch_size, drop_last=drop_last)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, world_size), got {rank} of {world_size}")
    if not 0 <= start <= count:
        raise ValueError(f"start must be in [0, {count}], the epoch's batches, got {start}")
    smallest = min(batch_size, images - (count - 1) * batch_size) if count else world_size
    if smallest < world_size:
        raise ValueError(
            f"a batch of {smallest} images has no share for each of {world_size} ranks; "
            "set drop_last=True or another batch_size"
        )

    if shuffle:
        order = torch.randperm(images, generator=seeded(seed, epoch, _ORDER))
    else:
        order = torch.arange(images)
    draws = None if augment is None else draw_epoch(augment, images, seed=seed, epoch=epoch)
    bounds = []
    for batch in range(start, count):
        first = batch * batch_size
        size = min(batch_size, images - first)
        bounds.append((first + size * rank // world_size, first + size * (rank + 1) // world_size))
    return split.stream(order, bounds, augment, draws)
