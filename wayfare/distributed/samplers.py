"""`DistributedSampler`: each rank gets its own part of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import wayfare as wf
from wayfare.core.config import settings
from wayfare.core.errors import ArgumentError, DistributedError
from wayfare.data.permutation import random_order
from wayfare.data.samplers import Sampler, check_count, length_of
from wayfare.distributed.process_group import get_rank, get_world_size, is_initialized

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[int]):
    """Every `num_replicas`-th example, beginning with `rank`, of an order that all ranks share.

    With `shuffle` the order is drawn from `seed` and the epoch, so call `set_epoch(epoch)` before each one. Ranks get
    equally many: some of the first examples come twice, or with `drop_last` some of the last are left out.
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        together = is_initialized()
        if not together and (num_replicas is None or rank is None) and (settings.launched_ranks or 1) > 1:
            raise DistributedError(f"{type(self).__name__}: {settings.launched_ranks} processes were launched and "
                                   "there is no process group yet, so every rank would get all examples",
                                   fix="Call wf.distributed.init_process_group() first, or give num_replicas and "
                                   "rank.")  # fmt: skip
        self.num_replicas = (get_world_size() if together else 1) if num_replicas is None else num_replicas
        self.rank = (get_rank() if together else 0) if rank is None else rank
        check_count("DistributedSampler", "num_replicas", self.num_replicas)
        check_count("DistributedSampler", "rank", self.rank, least=0)
        if self.rank >= self.num_replicas:
            raise ArgumentError(f"DistributedSampler: rank must be below num_replicas={self.num_replicas}, it is "
                                f"{self.rank}")  # fmt: skip
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0

    @property
    def num_samples(self) -> int:
        """How many examples this rank, like every other, gets."""
        count = length_of("DistributedSampler", self.dataset)
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)

    @property
    def total_size(self) -> int:
        """How many examples all ranks get together."""
        return self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        if not count:
            return
        order: Any = range(count)
        if self.shuffle:
            order = list(random_order(count, wf.Generator().manual_seed(self.seed + self.epoch)))
        for place in range(self.rank, self.total_size, self.num_replicas):
            yield int(order[place % count])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """The epoch that is about to begin: each has another order."""
        self.epoch = epoch
