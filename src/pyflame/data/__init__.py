"""Datasets, the order of their samples, and batches made of them."""

from pyflame.data import transforms
from pyflame.data.collate import default_collate
from pyflame.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    MapDataset,
    Subset,
    TensorDataset,
    random_split,
)
from pyflame.data.digits import Digits, load_digits
from pyflame.data.loader import DataLoader
from pyflame.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from pyflame.data.workers import DataLoaderWorkerError, WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "DataLoaderWorkerError",
    "Dataset",
    "Digits",
    "DistributedSampler",
    "IterableDataset",
    "MapDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "get_worker_info",
    "load_digits",
    "random_split",
    "transforms",
]
