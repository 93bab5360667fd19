"""Data: datasets, samplers, batches and a loader with worker processes.

Names, arguments and behaviour are those of `torch.utils.data`; new are `seed=`, `state_dict()` and `load_state_dict()`
of the loader, `BucketSampler`, `pad_collate`, `list_collate`, `Padded` and `Stacked`.
"""

from wayfare.data.bucket import BucketSampler
from wayfare.data.collate import default_collate, default_convert
from wayfare.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Stacked,
    Subset,
    TensorDataset,
    random_split,
)
from wayfare.data.loader import DataLoader
from wayfare.data.samplers import (
    BatchSampler,
    RandomOrder,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from wayfare.data.variable import Padded, list_collate, pad_collate
from wayfare.data.worker import WorkerInfo, get_worker_info

__all__ = [
    "DataLoader",
    "Dataset", "IterableDataset", "TensorDataset", "StackDataset", "ConcatDataset", "ChainDataset", "Subset", "Stacked",
    "random_split",
    "Sampler", "SequentialSampler", "RandomOrder", "RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler",
    "BatchSampler", "BucketSampler",
    "default_collate", "default_convert", "pad_collate", "list_collate", "Padded",
    "WorkerInfo", "get_worker_info",
]  # fmt: skip
