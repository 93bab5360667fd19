"""`ZeroRedundancyOptimizer`: the state of an optimiser split over the ranks (ZeRO, stage 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DistributedError
from wayfare.core.mode import UNUSUAL, executor
from wayfare.core.write_clock import note_write
from wayfare.distributed.algorithms.join import Joinable
from wayfare.distributed.objects import everyones
from wayfare.distributed.process_group import ProcessGroup, group_of

__all__ = ["ZeroRedundancyOptimizer"]


def _not_split() -> ArgumentError:
    return ArgumentError("ZeroRedundancyOptimizer: LBFGS looks at all parameters, so its state cannot be split",
                         fix="Use it without ZeroRedundancyOptimizer.")  # fmt: skip


class ZeroRedundancyOptimizer(wf.optim.Optimizer, Joinable):
    """Each rank updates its part of the parameters, keeps the state of that part only, and sends the result to all.

        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=wf.optim.Adam, lr=1e-3)

    A step changes the parameters as `optimizer_class` would. Gradients must be the same on all ranks, as
    DistributedDataParallel leaves them. To save, every rank calls `consolidate_state_dict()`, and then the rank that
    writes the file calls `state_dict()`, which is that of `optimizer_class`: it can be loaded on any number of ranks.
    """  # fmt: skip

    def __init__(
        self, params: Any, optimizer_class: type[wf.optim.Optimizer], process_group: Any = None,
        parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any,
    ) -> None:  # fmt: skip
        if not isinstance(optimizer_class, type) or not issubclass(optimizer_class, wf.optim.Optimizer):
            raise ArgumentTypeError("ZeroRedundancyOptimizer: optimizer_class must be a class of wf.optim, such as "
                                    f"wf.optim.Adam, not {optimizer_class!r}")  # fmt: skip
        if optimizer_class is wf.optim.LBFGS:
            raise _not_split()
        if overlap_with_ddp:
            raise ArgumentError("ZeroRedundancyOptimizer: overlap_with_ddp is not there yet", fix="Leave it out.")
        self._wrap(optimizer_class(params, **defaults), group_of(process_group))

    @classmethod
    def around(cls, optimizer: wf.optim.Optimizer, process_group: Any = None) -> ZeroRedundancyOptimizer:
        """An optimiser that is already there, with its state split from now on; its schedules go on."""
        if isinstance(optimizer, cls):
            return optimizer
        if isinstance(optimizer, wf.optim.LBFGS):
            raise _not_split()
        made = cls.__new__(cls)
        made._wrap(optimizer, group_of(process_group))
        return made

    def _wrap(self, inner: wf.optim.Optimizer, group: ProcessGroup) -> None:
        self._group = group
        self._inner = inner
        wf.optim.Optimizer.__init__(self, [{"params": list(g["params"])} for g in inner.param_groups], inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state
        self._whole: dict[str, Any] | None = None
        self._split()

    def _split(self) -> None:
        """Deal the parameters: the largest first, each to the rank that has least so far."""
        loads = [0] * self._group.size()
        self._owner: dict[int, int] = {}
        every = [p for group in self.param_groups for p in group["params"]]
        for p in sorted(every, key=lambda p: -p.numel()):
            rank = loads.index(min(loads))
            loads[rank] += p.numel()
            self._owner[id(p)] = rank
        me = self._group.rank()
        self._own = [[p for p in group["params"] if self._owner[id(p)] == me] for group in self.param_groups]
        self._parts = [[p for p in every if self._owner[id(p)] == rank] for rank in range(self._group.size())]
        self._forget_others()

    def _forget_others(self) -> None:
        for p in [p for p in self.state if self._owner.get(id(p)) != self._group.rank()]:
            del self.state[p]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take over another group, and deal all parameters anew."""
        if not hasattr(self, "_owner"):
            super().add_param_group(param_group)
            return
        if self.state:
            raise DistributedError("ZeroRedundancyOptimizer: a group cannot be added after the first step, because "
                                   "states would have to move between ranks", fix="Add it before.")  # fmt: skip
        self._inner.add_param_group(param_group)
        self._split()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change this rank's parameters, and take over those of the others."""
        if UNUSUAL:
            executor().not_replayable("ZeroRedundancyOptimizer takes parameters from other processes")
        loss = None
        if closure is not None:
            with wf.enable_grad():
                loss = closure()
        every = [group["params"] for group in self.param_groups]
        try:
            for group, own in zip(self.param_groups, self._own, strict=True):
                group["params"] = own
            self._inner.step()
        finally:
            for group, params in zip(self.param_groups, every, strict=True):
                group["params"] = params
        self._share()
        self._whole = None
        return loss

    def _share(self) -> None:
        """All ranks get the parameters of each rank; the transfers go on side by side."""
        under_way = []
        for rank, params in enumerate(self._parts):
            for name in dict.fromkeys(p.dtype.name for p in params):
                arrays = [p.detach().numpy() for p in params if p.dtype.name == name]
                mine = rank == self._group.rank()
                flat = np.concatenate([a.reshape(-1) for a in arrays]) if mine else np.empty(
                    sum(a.size for a in arrays), name)  # fmt: skip
                request = self._group.engine.broadcast(flat, rank)
                work = self._group.work(request, "the parameters of a rank", size=flat.nbytes)
                under_way.append((work, arrays, flat, mine))
        for work, arrays, flat, mine in under_way:
            work.wait()
            start = 0
            for array in () if mine else arrays:
                array[...] = flat[start : start + array.size].reshape(array.shape)
                note_write(array)
                start += array.size

    # -- saving

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Gather the states of all ranks on rank `to` (None: on all), for `state_dict()`. Every rank must call it."""
        states = everyones(self._group, self._inner.state_dict()["state"], "consolidate_state_dict")
        merged = {number: state for part in states for number, state in part.items()}
        if to is None or self._group.rank() == self._group.index_of(to, "to"):
            groups = self._inner.state_dict()["param_groups"]
            self._whole = {"state": dict(sorted(merged.items())), "param_groups": groups}

    def state_dict(self) -> dict[str, Any]:
        """The whole state, after `consolidate_state_dict()`."""
        if self._whole is None:
            raise DistributedError("ZeroRedundancyOptimizer: this rank has only its own part of the state",
                                   fix="Call consolidate_state_dict() on every rank first.")  # fmt: skip
        return self._whole

    def local_state_dict(self) -> dict[str, Any]:
        """The part of the state that this rank has, for `wf.distributed.checkpoint.save`."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a whole state; each rank keeps its part."""
        self._inner.load_state_dict(state_dict)
        self._forget_others()
        self._whole = None

    def memory(self) -> dict[str, int]:
        """Bytes of state here, the most on any rank, and what one process would need. Every rank must call it."""
        mine = sum(v.numel() * v.element_size() for state in self.state.values() for v in state.values()
                   if isinstance(v, wf.Tensor))  # fmt: skip
        every = everyones(self._group, mine, "memory")
        return {"here": mine, "most": max(every), "unsplit": sum(every)}

    # -- Joinable

    @property
    def join_process_group(self) -> ProcessGroup:
        """The group whose ranks are joined."""
        return self._group

    def stand_in(self, active: int, divide_by_active: bool) -> None:
        """Update this rank's part with the gradients of the others."""
        self.step()
