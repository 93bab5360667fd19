"""Gradients on their way to the other ranks: in buckets, sent while the backward pass goes on.

A bucket is one array with the gradients of several parameters, in the order in which they arrive. It is sent when the
last of them is there, and buckets are sent in a fixed order, so that the ranks need not agree on anything. Behind the
gradients a bucket has one number for each parameter that says whether the rank has a gradient at all: a parameter that
no rank used keeps none. Gradients that are rows of an embedding are sent as rows (rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.autograd.after_backward import after_backward
from wayfare.core.errors import DistributedError
from wayfare.core.mode import executor
from wayfare.core.write_clock import note_write
from wayfare.distributed.algorithms.join import Join
from wayfare.distributed.engine import Array, ReduceOp
from wayfare.distributed.objects import from_rank
from wayfare.distributed.process_group import ProcessGroup
from wayfare.distributed.rows import RowExchange
from wayfare.distributed.work import Work

__all__ = ["Reducer"]

_MB = 2**20
# The first bucket is small, so that the first transfer starts early.
_FIRST = _MB


class Bucket:
    """Some parameters of one dtype, whose gradients travel together."""

    def __init__(self, members: Sequence[int], params: Sequence[wf.Tensor]) -> None:
        self.members = list(members)
        self.waiting = len(self.members)
        self._params = [params[i] for i in self.members]
        ends = np.cumsum([0, *(p.numel() for p in self._params)]).tolist()
        self._spans = list(pairwise(ends))
        dtype = np.dtype(self._params[0].dtype.name)
        self._flat: Array = np.zeros(ends[-1] + len(self.members), dtype)
        self._sum = np.empty_like(self._flat)
        self._work: Work | None = None

    def send(self, group: ProcessGroup) -> None:
        """Start the transfer of what there is."""
        there = self._flat[self._spans[-1][1] :]
        for number, (p, (start, end)) in enumerate(zip(self._params, self._spans, strict=True)):
            grad = p.grad
            there[number] = grad is not None
            if grad is None:
                self._flat[start:end] = 0
            else:
                self._flat[start:end].reshape(tuple(p.shape))[...] = grad.detach().numpy()
        request = group.engine.all_reduce(self._flat, self._sum, ReduceOp.SUM)
        self._work = group.work(request, "the all-reduce of gradients", size=self._flat.nbytes, background=True)

    def receive(self, divisor: int) -> None:
        """Wait, and put the means into the gradients."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        there = self._sum[self._spans[-1][1] :].tolist()
        for p, (start, end), count in zip(self._params, self._spans, there, strict=True):
            if not count:
                continue
            total = self._sum[start:end].reshape(tuple(p.shape))
            grad = p.grad
            if grad is None:
                p.grad = wf.from_numpy(total / divisor)
            else:
                target = grad.detach().numpy()
                np.divide(total, divisor, out=target)
                note_write(target)
        self.waiting = len(self.members)


class Reducer:
    """Takes gradients as they arrive in a backward pass, and leaves the mean over all ranks when it has ended."""

    def __init__(
        self, module: wf.nn.Module, named: Sequence[tuple[str, wf.Tensor]], by_rows: Sequence[wf.Tensor],
        group: ProcessGroup, cap: float,
    ) -> None:  # fmt: skip
        self._module = module
        self.group = group
        self.enabled = True
        # By how much the sum is divided: the number of ranks, unless some have run out of data (algorithms/join.py).
        self.divisor = group.size()
        self.join: Join | None = None
        self.after_pass: Callable[[], None] | None = None
        self._names = [name for name, _ in named]
        self._params = [p for _, p in named]
        self._cap = cap * _MB
        self._rows = [RowExchange(p, group) for p in by_rows]
        rows = {id(p) for p in by_rows}
        self._dense = [i for i, p in enumerate(self._params) if id(p) not in rows]
        self._number = {id(p): i for i, p in enumerate(self._params)}
        # Before the first pass: the last parameters first, as their gradients mostly come first.
        self._buckets = self._in_buckets(list(reversed(self._dense)))
        self._bucket_of: dict[int, Bucket] = {}
        self._arrived: dict[int, None] = {}  # in order
        self._next = 0
        self._is_rebuilt = False
        self._handles = [p.register_post_accumulate_grad_hook(self._take) for p in self._params]

    def _in_buckets(self, order: Sequence[int]) -> list[Bucket]:
        """Buckets of at most `cap` bytes, of one dtype each, in the order in which they will be full."""
        limits: dict[Any, float] = {}
        open_: dict[Any, list[int]] = {}
        sizes: dict[Any, int] = {}
        made: list[list[int]] = []
        for i in order:
            p = self._params[i]
            kind = p.dtype
            size = p.numel() * p.element_size()
            if open_.get(kind) and sizes[kind] + size > limits.setdefault(kind, min(_FIRST, self._cap)):
                made.append(open_.pop(kind))
                limits[kind] = self._cap
            if kind not in open_:
                open_[kind], sizes[kind] = [], 0
            open_[kind].append(i)
            sizes[kind] += size
        return [Bucket(members, self._params) for members in [*made, *open_.values()]]

    def _take(self, p: Any) -> None:
        """The gradient of a parameter is complete."""
        if not self.enabled:
            return
        executor().not_replayable("DistributedDataParallel sends gradients to other processes")
        if not self._arrived:
            if self.join is not None:
                self.join.comes()
            self._begin()
            after_backward(self.finish)
        number = self._number[id(p)]
        if number in self._arrived:
            raise DistributedError(f"DistributedDataParallel: the gradient of {self._names[number]!r} came twice in "
                                   "one backward pass, and the first may be on its way",
                                   fix="Part of the model runs backward inside backward (a checkpoint); wrap "
                                   "the accumulation in no_sync().")  # fmt: skip
        self._arrived[number] = None
        bucket = self._bucket_of.get(number)
        if bucket is not None:
            bucket.waiting -= 1
            self._send_full()

    def _begin(self) -> None:
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.members}
        for bucket in self._buckets:
            bucket.waiting = len(bucket.members)
        self._next = 0

    def _send_full(self) -> None:
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            self._buckets[self._next].send(self.group)
            self._next += 1

    def finish(self) -> None:
        """The backward pass is over: send what is left, and wait for the means of all."""
        if not self._arrived:  # a rank without data, which stands in for a pass of the others
            self._begin()
        for bucket in self._buckets[self._next :]:
            bucket.send(self.group)
        for exchange in self._rows:
            exchange.announce()
        self._check_complete()  # while the transfers go on
        for exchange in self._rows:
            exchange.send()
        for bucket in self._buckets:
            bucket.receive(self.divisor)
        for exchange in self._rows:
            exchange.receive(self.divisor)
        if self.after_pass is not None:
            self.after_pass()
        arrived, self._arrived = list(self._arrived), {}
        self._next = 0
        if not self._is_rebuilt:
            self._rebuild(arrived)

    def _check_complete(self) -> None:
        """A parameter that came after this reducer has gradients of its own on every rank."""
        missed = [name for name, p in self._module.named_parameters() if p.requires_grad and id(p) not in self._number]
        if missed:
            raise DistributedError("DistributedDataParallel: added or unfrozen after the model was wrapped: "
                                   f"{', '.join(missed[:5])}. Its gradients are not averaged, and the ranks would come "
                                   "apart",
                                   fix="Wrap the model again: DistributedDataParallel(model).")  # fmt: skip

    def _rebuild(self, arrived: list[int]) -> None:
        """After the first pass: buckets in the order in which rank 0 got its gradients."""
        dense = set(self._dense)
        order = from_rank(self.group, [i for i in arrived if i in dense], 0, "the order of gradients")
        order += [i for i in reversed(self._dense) if i not in set(order)]
        self._buckets = self._in_buckets(order)
        self._is_rebuilt = True

    @property
    def bucket_names(self) -> list[list[str]]:
        """The parameters of each bucket, in the order of sending."""
        return [[self._names[i] for i in bucket.members] for bucket in self._buckets]

    def remove(self) -> None:
        """Take no more gradients, and give back the communicator."""
        for handle in self._handles:
            handle.remove()
        self.group.close()
