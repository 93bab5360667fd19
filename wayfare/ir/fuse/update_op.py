"""An update of many sets of arrays (an optimiser's step) as an op: `update_op(update, sets) -> Op`.

The inputs of its steps are the written arrays of all sets, argument by argument, then the arrays that are only read;
the outputs are the new values of the written ones in the same order; attrs are `{"numbers": floats}`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.codegen.runtime.update import Update
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op
from wayfare.core.spec import Spec


@lru_cache(maxsize=4096)
def update_op(update: Update, sets: int) -> Op:
    """The op of an update over `sets` sets of arrays."""
    run = OfUpdate(update, sets)
    return Op(
        name=update.name, family="update", forward=run.forward, infer=run.infer, vjp=None, batch=_no_batch,
        samples=lambda rng: (), reference=run.forward, outputs=run.count,
    )  # fmt: skip


def of_update(op: Op) -> OfUpdate:
    """The update of an update op."""
    return op.forward.__self__  # type: ignore[attr-defined,no-any-return]


def _no_batch(m: Any, size: int, inputs: Any, batched: Any, attrs: Any) -> Any:
    raise NotImplementedError("a recorded update is not batched")


class OfUpdate:
    """An update and the number of sets it runs over."""

    def __init__(self, update: Update, sets: int) -> None:
        self.update, self.sets = update, sets
        # How many arrays are written.
        self.count = len(update.written) * sets
        order = sorted((k, place) for place, k in enumerate((*update.written, *update.read)))
        # For each set the places of its arguments among the inputs, in the order of the formula.
        self.places = [[place * sets + i for _, place in order] for i in range(sets)]

    def infer(self, *specs: Spec, **_attrs: Any) -> Any:
        """New values are like the old ones."""
        return tuple(specs[: self.count]) if self.count > 1 else specs[0]

    def forward(self, *arrays: Array, numbers: Any) -> Any:
        """The new values in arrays of their own."""
        made = [np.empty_like(a) for a in arrays[: self.count]]
        for places in self.places:
            outputs = [made[places[k]] for k in self.update.written]
            self.update.one([arrays[p] for p in places], outputs, numbers)
        return tuple(made) if len(made) > 1 else made[0]
