"""A block as a function of arrays with a row for each example: op by op at first, then by plans.

Calling it gives an `OpsCall` or a `PlannedCall`, which has the outputs. Its `backward` computes the gradients of the
inputs from those of the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import thread_time
from typing import Any

from wayfare.autograd.engine import run as run_backward
from wayfare.autograd.vmap import map_batch
from wayfare.batch.paths.blocks import BlockInputs, evaluate
from wayfare.batch.paths.budget import PathBudget
from wayfare.batch.paths.plans import BlockPlan, size_of_plan
from wayfare.codegen.routines.rows import Rows
from wayfare.compiler.record.graph import Graph
from wayfare.core.device import copied
from wayfare.core.dispatch import tensor_ops
from wayfare.core.errors import InPlaceError
from wayfare.core.mode import changed_mode
from wayfare.core.numpy_math import Array
from wayfare.core.tensor import Tensor, wrap
from wayfare.core.write_clock import written_after
from wayfare.ir.graph import Value

# Runs of a block with about one size, op by op, before it is planned; and runs with a plan that is too large, before
# there is one that fits better.
_BEFORE_PLAN, _BEFORE_FIT = 3, 12
# The gradient of a table of more rows is sparse; a plan would fill in all of it.
_LARGEST = 1 << 20


class OpsCall:
    """A call that ran op by op, with ordinary autograd nodes."""

    __slots__ = ("_leaves", "_made", "carries", "outputs")

    def __init__(self, leaves: list[Tensor], made: Sequence[Tensor]) -> None:
        self._leaves, self._made = leaves, made
        self.outputs = [t._array for t in made]
        self.carries = [t._requires_grad for t in made]

    def backward(self, grads: Sequence[Array | None], time: int) -> list[Any]:
        """The gradient of each input: an array, Rows, or None."""
        for t in self._leaves:
            t._grad = None
        roots = [(t._edge or t, g) for t, g in zip(self._made, grads, strict=True)
                 if g is not None and t._requires_grad]  # fmt: skip
        with changed_mode(executor=None):
            run_backward(roots, retain=True, create=False, capture=None)
        found = []
        for t in self._leaves:
            g: Any = t._grad
            # Gradients of different inputs may be one array, and ours are added to in place.
            found.append(g if g is None or g.__class__ is Rows else copied(g._array))
            t._grad = None
        return found


class PlannedCall:
    """A call that ran as a plan."""

    __slots__ = ("_arrays", "_budget", "_made", "_plan", "_shared", "carries", "outputs")

    def __init__(self, plan: BlockPlan, arrays: list[Array], shared: Sequence[Array], budget: PathBudget) -> None:
        self._plan, self._arrays, self._shared, self._budget = plan, arrays, shared, budget
        self._made = plan.forward(arrays)
        self.carries = plan.carries
        self.outputs = self._made[: len(self.carries)]

    def backward(self, grads: Sequence[Array | None], time: int) -> list[Any]:
        """The gradient of each input. Shared tensors that it reads must not have been written since `time`."""
        plan = self._plan
        if any([written_after(self._shared[i], time) for i in plan.reads_shared]):
            raise InPlaceError("map: a tensor that the gradient of this map needs was written in place after it",
                               fix="Write after the backward pass, or to a clone.")  # fmt: skip
        if plan.has_backward:
            return plan.backward(grads, self._arrays, self._made)
        began = thread_time()
        found = plan.backward(grads, self._arrays, self._made)
        self._budget.spend(began)
        return found


class BlockFunction:
    """The function of all blocks with one key."""

    __slots__ = (
        "_batched", "_budget", "_graph", "_name", "_plans", "_rows", "_runs", "_shared", "_targets", "unplanned",
    )  # fmt: skip

    def __init__(self, name: str, inputs: BlockInputs, graph: Graph, budget: PathBudget) -> None:
        self._name = name
        self._budget = budget
        self._rows = inputs.rows
        self._shared: list[Value] = [source.value for source in inputs.shared]
        self._targets = inputs.targets
        self._graph = graph
        self._runs: dict[Any, int] = {}
        self._plans: dict[Any, BlockPlan] = {}
        self.unplanned = ""  # why it is not planned
        self._batched = map_batch(self._one, (0,) * len(self._rows) + (None,) * len(self._shared), 0)
        self._batched.__name__ = name

    def _one(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The block for one example."""
        known = dict(zip([*self._rows, *self._shared], tensors, strict=True))
        return tuple(evaluate(self._targets, known, self._graph))

    def size_for(self, count: int, needs: tuple[bool, ...]) -> int:
        """How many rows a call for `count` examples wants: more if it is planned for a larger size."""
        if self.unplanned or not self._rows:
            return count
        best = size_of_plan(count)
        if (best, needs) in self._plans:
            return best
        runs = self._runs[best, needs] = self._runs.get((best, needs), 0) + 1
        may_plan = self._budget.allows()
        if runs > _BEFORE_FIT and may_plan:
            return best
        rough = 1 << (count - 1).bit_length()
        if (rough, needs) in self._plans:
            return rough
        if rough != best:
            self._runs[rough, needs] = runs = self._runs.get((rough, needs), 0) + 1
        return rough if runs > _BEFORE_PLAN and may_plan else count

    def __call__(self, arrays: list[Array], size: int, count: int, needs: tuple[bool, ...]) -> OpsCall | PlannedCall:
        """Run it on these arrays (rows, then shared), which have the `size` rows that it wants for `count`."""
        if not self.unplanned and self._rows:
            plan = self._plans.get((size, needs))
            due = size > count or (self._runs.get((size, needs), 0) > _BEFORE_PLAN and self._budget.allows())
            if plan is None and due:
                plan = self._plan(arrays, size, needs)
            if plan is not None:
                return PlannedCall(plan, arrays, arrays[len(self._rows) :], self._budget)
        return self._by_ops(arrays, size, needs)

    def _plan(self, arrays: list[Array], size: int, needs: tuple[bool, ...]) -> BlockPlan | None:
        shared = arrays[len(self._rows) :]
        if any([need and a.size > _LARGEST for a, need in zip(shared, needs[len(self._rows) :], strict=True)]):
            self.unplanned = "the gradient of a large table is sparse"
            return None
        began = thread_time()
        try:
            plan = BlockPlan(self._name, self._rows, self._shared, self._targets, self._graph.cuts, size, needs, arrays)
        except Exception as error:
            # An op whose rules read numbers, say. Its ops can still run one by one.
            self.unplanned = f"{type(error).__name__}: {error}"
            return None
        finally:
            self._budget.spend(began)
        self._plans[size, needs] = plan
        return plan

    def _by_ops(self, arrays: list[Array], size: int, needs: tuple[bool, ...]) -> OpsCall:
        tensors = []
        for array, need in zip(arrays, needs, strict=True):
            t = wrap(array)
            t._requires_grad = need
            tensors.append(t)
        if self._rows:
            return OpsCall(tensors, self._batched(*tensors))
        return OpsCall(tensors, [tensor_ops.expand(t, shape=(size, *t.shape)) for t in self._one(*tensors)])
