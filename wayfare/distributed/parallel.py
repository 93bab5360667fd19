"""`DistributedDataParallel`: every rank has the model and a part of each batch; the ranks' gradients are averaged."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.callsite import outside_frames
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DistributedError
from wayfare.core.write_clock import note_write
from wayfare.distributed.agreement import differing_ranks
from wayfare.distributed.algorithms.join import Join, Joinable
from wayfare.distributed.buckets import Reducer
from wayfare.distributed.objects import everyones
from wayfare.distributed.process_group import ProcessGroup, group_of

__all__ = ["DistributedDataParallel"]


class DistributedDataParallel(wf.nn.Module, Joinable):
    """A model that trains on several ranks: `model = nn.parallel.DistributedDataParallel(model)`.

    All ranks start with the weights of rank 0. Each runs its own part of the batch, and when `backward()` returns, the
    gradients are the means over all ranks; they are sent while the backward pass goes on, in buckets of
    `bucket_cap_mb`. So with a loss that is a mean, and parts of equal size, training is that of one process with the
    whole batch. Parameters that a rank does not use need no flag: `find_unused_parameters`, `static_graph` and
    `gradient_as_bucket_view` are accepted and change nothing. Parameters that are added or unfrozen later are an error:
    wrap the model again.

    With `broadcast_buffers`, buffers (running statistics of batch norm) become those of rank 0 after every backward
    pass. `wf.map(model, examples)` and `wf.compile` see the model as if it were not wrapped; a compiled function that
    calls `backward()` itself runs as plain Python, because its gradients go to other processes.
    """

    def __init__(
        self, module: wf.nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
        broadcast_buffers: bool = True, init_sync: bool = True, process_group: Any = None,
        bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
        gradient_as_bucket_view: bool = False, static_graph: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(module, wf.nn.Module):
            raise ArgumentTypeError(f"DistributedDataParallel: takes an nn.Module, not a {type(module).__name__}")
        if device_ids or output_device is not None:
            raise ArgumentError("DistributedDataParallel: device_ids are for GPUs, and this model is on the CPU",
                                fix="Leave device_ids and output_device out.")  # fmt: skip
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise DistributedError("DistributedDataParallel: no parameter of the model requires a gradient, so there "
                                   "is nothing to do", fix="Use the model itself.")  # fmt: skip
        cap = 25.0 if bucket_cap_mb is None else bucket_cap_mb
        if not cap > 0:
            raise ArgumentError(f"DistributedDataParallel: bucket_cap_mb must be above 0, it is {cap}")
        self.module = module
        self.process_group = group_of(process_group)
        # A group of its own: what the user sends meanwhile cannot get between the buckets.
        self._group = _twin(self.process_group)
        _check_same(module, self._group)
        if init_sync:
            copy_from(0, [*module.parameters(), *module.buffers()], self._group)
        by_rows = [p for p in _tables(module) if p.requires_grad]
        self._reducer = Reducer(module, named, by_rows, self._group, cap)
        self._options: dict[str, Any] = {"broadcast_buffers": broadcast_buffers, "bucket_cap_mb": bucket_cap_mb}
        if broadcast_buffers and any(True for _ in module.buffers()):
            group = self._group
            self._reducer.after_pass = lambda: copy_from(0, list(module.buffers()), group)
        # The parameters hold the reducer by its hooks, and may live longer than the wrapper.
        weakref.finalize(self, self._reducer.remove).atexit = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the model computes on this rank's part of the batch."""
        return self.module(*inputs, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        """The copy sends gradients of its own, so every rank must make one."""
        made = DistributedDataParallel(copy.deepcopy(self.module, memo), init_sync=False,
                                       process_group=self.process_group, **self._options)  # fmt: skip
        made.training = self.training
        memo[id(self)] = made
        return made

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this block send nothing: gradients add up on each rank until a pass outside it."""
        before, self._reducer.enabled = self._reducer.enabled, False
        try:
            yield
        finally:
            self._reducer.enabled = before

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Join:
        """A block in which ranks may run out of data at different times: `with model.join(): for batch in …`."""
        return Join([self], enable, throw_on_early_termination,
                    divide_by_initial_world_size=divide_by_initial_world_size)  # fmt: skip

    # -- Joinable

    @property
    def join_process_group(self) -> ProcessGroup:
        """The group whose ranks are joined."""
        return self._group

    def joined(self, join: Join | None) -> None:
        """A block of `Join` begins or ends."""
        self._reducer.join = join

    def stand_in(self, active: int, divide_by_active: bool) -> None:
        """Take part in a pass of the ranks that still have data, with nothing of its own."""
        self.divide_by(active if divide_by_active else self._group.size())
        for p in self.module.parameters():
            p.grad = None
        self._reducer.finish()

    def divide_by(self, count: int) -> None:
        """By how much sums of gradients are divided from now on."""
        self._reducer.divisor = count

    def catch_up(self, rank: int) -> None:
        """Take over everything from a rank that was there to the end."""
        copy_from(rank, [*self.module.parameters(), *self.module.buffers()], self._group)

    @property
    def buckets(self) -> list[list[str]]:
        """The names of the parameters in each bucket, in the order of sending."""
        return self._reducer.bucket_names


def _twin(group: ProcessGroup) -> ProcessGroup:
    engine = group.split(range(group.size()), "DistributedDataParallel")
    assert engine is not None
    return ProcessGroup(engine, group.ranks, group.timeout, f"{group.name}, for gradients")


def _tables(module: wf.nn.Module) -> list[wf.Tensor]:
    """The weights whose gradients may be rows."""
    kinds = (wf.nn.Embedding, wf.nn.EmbeddingBag)
    found = {id(m.weight): m.weight for m in module.modules() if isinstance(m, kinds)}
    return list(found.values())


def copy_from(rank: int, tensors: list[Any], group: ProcessGroup) -> None:
    """Give all ranks the values of one rank's tensors: one transfer for each dtype."""
    if group.size() == 1:
        return
    kinds: dict[Any, list[Any]] = {}
    for t in tensors:
        kinds.setdefault(t.dtype.name, []).append(t.detach().numpy())
    for name, arrays in kinds.items():
        flat = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, name)
        group.work(group.engine.broadcast(flat, rank), f"the weights of rank {rank}", size=flat.nbytes).wait()
        if group.rank() == rank:
            continue
        start = 0
        for array in arrays:
            array[...] = flat[start : start + array.size].reshape(array.shape)
            note_write(array)
            start += array.size


def _check_same(module: wf.nn.Module, group: ProcessGroup) -> None:
    """The ranks must have the same model; a difference of its numbers is only worth a word."""
    lines = [f"{name}: {t.spec}{'' if t.requires_grad else ', fixed'}" for name, t in module.named_parameters()]
    lines += [f"{name}: {t.spec}, a buffer" for name, t in module.named_buffers()]
    lines.append(repr(module))
    text = "\n".join(lines)
    if differing_ranks(group, text.encode()):
        first = everyones(group, text, "DistributedDataParallel")
        for rank, other in enumerate(first):
            if other != first[0]:
                a, b = first[0].split("\n"), other.split("\n")
                here, there = next(((x, y) for x, y in zip(a, b, strict=False) if x != y),
                                   (f"{len(a)} lines", f"{len(b)} lines"))  # fmt: skip
                raise DistributedError(f"DistributedDataParallel: the model of rank {rank} is not that of rank 0: "
                                       f"{there.strip()!r} and {here.strip()!r}",
                                       fix="Build the same model on every rank.")  # fmt: skip
    values = [t.detach().numpy() for t in (*module.parameters(), *module.buffers())]
    others = differing_ranks(group, b"".join(np.ascontiguousarray(v).tobytes() for v in values))
    if others and group.rank() == 0:
        shown = f"rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        warnings.warn(f"DistributedDataParallel: {shown} began with other weights than rank 0, whose weights are "
                      "taken. The same wf.manual_seed(…) on every rank gives the same weights.",
                      stacklevel=outside_frames())  # fmt: skip
