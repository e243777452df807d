"""Data sets: found, checked, split, held on the device and served in batches.

data = load_dataset("cifar10", data_dir="data", validation=5000)
for x, y in batches(data.train, 128, seed=0, epoch=3, augment=data.augmentation):
...
for x, y in batches(data.test, 500, seed=0, epoch=0, shuffle=False):
...
"""

from dessilbi.lab.data.augment import Augmentation, PadCropFlip, ResizedCropFlip
from dessilbi.lab.data.batches import batches, count_batches
from dessilbi.lab.data.errors import DataError
from dessilbi.lab.data.load import DATASETS, load_dataset
from dessilbi.lab.data.splits import Dataset, Split, TensorSplit

__all__ = [
    "DATASETS",
    "Augmentation",
    "DataError",
    "Dataset",
    "PadCropFlip",
    "ResizedCropFlip",
    "Split",
    "TensorSplit",
    "batches",
    "count_batches",
    "load_dataset",
]
