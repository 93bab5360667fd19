"""The executor: everything that the package may ask of the way it is being run.

`Executor` is the eager way, and each method says what happens there. vmap, the recorder of `wf.compile`, the session of
`wf.map`, the trace of `@wf.fused` and the tracer of an exporter are `Interceptor`s and override what differs for them.
Code elsewhere calls `executor().method(...)` (core/mode.py) and never asks which executor is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from wayfare.core.device import BACKENDS, copied, zeros_on_device_of
from wayfare.core.errors import OperationError

__all__ = ["EAGER", "CallOut", "Executor", "Interceptor", "StaleCall"]

Array = np.ndarray[Any, np.dtype[Any]]


class CallOut(Protocol):
    """Python that runs again whenever a recorded call is replayed: counters go up, numbers are worked out anew.

    The call-outs of a recording run in its order. `run` looks for itself whether it may; `ready` only asks.
    """

    # Why the last `ready` said no: a clause for "recorded again because …".
    reason: str

    def take(self) -> Any:
        """The call itself, while it is recorded."""

    def ready(self) -> bool:
        """Would the call still do what was recorded? Changes nothing."""

    def run(self) -> list[tuple[float, ...]]:
        """Advance the Python state by one call, and give the numbers of each fused update it makes, in order.

        Raises `StaleCall`, having changed nothing, where `ready` would have said no.
        """

    def undo(self) -> None:
        """Put the Python state back as it was before the last `run`."""

    def left(self) -> Any:
        """The Python state that `run` changes, as it is now, for a comparison."""


class StaleCall(Exception):
    """A call-out would no longer do what was recorded."""


class Executor:
    """The eager way to run: ops run at once, on arrays, and nobody else takes notice."""

    __slots__ = ()

    # May a function compute on the arrays of tensors itself, past the ops? Else it must use ops for all it does.
    works_on_arrays = True
    # May an optimiser take and change some rows of a tensor only, past the ops?
    works_on_rows = True
    # Will what runs now be used with other sizes too? Then what follows from a size must be computed by ops.
    sizes_may_differ = False
    # Is the graph of what a transform (`grad`, `vjp`, …) returns still needed, by a transform around it?
    keeps_graph = False
    # May examples be batched inside, as if there were no executor in force?
    allows_batches = True
    # Does it batch calls itself, and run them later? Such an executor gives way to watchers (see Mode).
    batches = False
    # For a profile: is a call of a module one that the user's code makes, and do its ops run before it returns?
    counts_modules = True
    times_modules = True

    # -- ops, reads and writes

    def apply(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Run one op on tensors. (Eagerly core/dispatch.py runs it, and does not come here.)"""
        raise NotImplementedError

    def read(self, tensor: Any, how: str) -> Any:
        """Python reads a value (`bool()`, `.item()`, …): give the array, or refuse with the reason."""
        return tensor._array

    def may_read(self, *tensors: Any) -> bool:
        """May a check look at the numbers of these tensors? Not where they are only traced, or still to be computed;
        and not on another device, which the check would wait for."""
        return not BACKENDS or all([t.device.type == "cpu" for t in tensors])

    def may_decide(self, tensor: Any) -> bool:
        """Where `may_read` says no: may a check decide by one truth that ops compute of this tensor?"""
        return True

    def behind(self, tensor: Any, name: str) -> Any:
        """A write in place (`name`) is about to happen: the tensor whose memory is written, which is then checked; None
        where there is nothing to check."""
        return tensor

    def write(self, tensor: Any, result: Any, move: Callable[[Any, Any], Any]) -> None:
        """Write in place: call `move(tensor, values)` for what stands behind the two. (Eagerly core/inplace.py writes,
        and does not come here.)"""
        raise NotImplementedError

    def written_past_ops(self) -> None:
        """A custom Function has written to memory, and said so."""

    def picked(self, tensor: Any, places: tuple[tuple[int, Any], ...], out: Any) -> None:
        """`out` is `tensor[i]` with indices that are 0-dim tensors, taken by an op: eagerly that would be a view."""

    # -- how tensors lie in memory

    def is_contiguous(self, tensor: Any) -> bool:
        """Is it known that the rows of a tensor lie one after the other?"""
        return bool(tensor._array.flags.c_contiguous)

    def is_view(self, tensor: Any, shape: tuple[int, ...]) -> bool:
        """Could the tensor have that shape without a copy? True where the result will tell (`is_copy`)."""
        return True

    def is_copy(self, out: Any) -> bool:
        """Did a reshape have to copy? False where that cannot be told."""
        return out._view is None

    # -- new tensors and modules, and changes of old ones

    def born(self, thing: Any) -> None:
        """An array of its own memory, or a module, was made."""

    def one_for_each(self, tensor: Any, out: Any) -> Any:
        """A new tensor `out`, made after `tensor`; where that is one for each example of a batch, so is the result."""
        return out

    def changes(self, thing: Any, how: str) -> None:
        """A tensor or a module is about to change (None: something of the whole process)."""

    def memory_shared(self, tensor: Any) -> None:
        """Another tensor is about to be made on the memory of this one, past the ops (`detach()`, `.data = …`)."""

    def flag_set(self, tensor: Any, what: str) -> None:
        """Something about a tensor is about to be set that is no number: `requires_grad`, `retain_grad()`."""

    def data_set(self, tensor: Any) -> None:
        """A tensor is about to get other memory (`.data = …`)."""

    def grad_read(self, tensor: Any) -> None:
        """`tensor.grad` is read."""

    def grad_written(self, tensor: Any, grad: Any) -> None:
        """`tensor.grad` is about to be set."""

    # -- backward passes

    def backward(self, roots: Any, *, retain: bool, create: bool, capture: Any, accumulate: bool) -> bool:
        """A backward pass is asked for. True if it was run here; False if the engine is to run it."""
        return False

    def for_real(self, function: Callable[[], Any], changes: str = "") -> Any:
        """Run what is not made of ops alone (a backward pass, a transform) on ordinary tensors. `changes` says, if it
        does, what it changes that others see."""
        return function()

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Array:
        """Zeros for a gradient that did not come, on the device of the array `like`."""
        return zeros_on_device_of(like, shape, dtype)  # type: ignore[no-any-return]

    def array_copied(self, array: Array, copy: Array) -> None:
        """A gradient was copied past the ops."""

    def own_gradient(self, g: Any) -> Any:
        """A gradient that the user's code gave, as a backward pass may keep it: the user may still hold its array."""
        return copied(g._array)

    # -- calls that an executor may take as one

    def opaque_call(self, owner: Any, function: Any, args: tuple[Any, ...], options: dict[str, Any], about: Any) -> Any:
        """`function(owner, *args, **options)` as one call; NotImplemented where the caller is to run it."""
        return NotImplemented

    def module_call(self, module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The same for a module, if its forward only computes."""
        return NotImplemented

    def compiled_call(
        self, compiled: Any, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A call of a compiled function, which is not replayed here: `function` is the plain one."""
        return function(*args, **options)

    def custom(self, function: Any, args: tuple[Any, ...], run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """A custom autograd Function; `run(function, args)` runs it on ordinary tensors."""
        return run(function, args)

    def custom_recorded(self, name: str) -> None:
        """A custom Function has become a node of the graph."""

    def call_out(self, make: Callable[[], CallOut], run: Callable[[], Any]) -> Any:
        """Python with a state of its own (a step of an optimiser): `run()`, or where calls are recorded the call-out
        that `make()` gives."""
        return run()

    def update(self, update: Any, written: list[Any], read: list[Any], numbers: Sequence[float]) -> None:
        """Run a fused update (an `Update` of codegen/runtime) on tensors, in place."""
        self.before_update(update.name)
        update([t._array for t in written], [t._array for t in read], numbers)

    def before_update(self, name: str) -> None:
        """A fused update is about to change arrays in place."""

    # -- control flow that the user states

    def cond(self, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
        """`wf.cond`."""
        return true_fn(*operands) if pred else false_fn(*operands)

    def while_loop(self, run: Callable[..., Any], cond_fn: Any, body_fn: Any, carried: tuple[Any, ...]) -> Any:
        """`wf.while_loop`; `run(cond_fn, body_fn, carried)` is the loop in plain Python."""
        return run(cond_fn, body_fn, carried)

    def scan(self, run: Callable[..., Any], combine_fn: Any, init: Any, xs: Any, dim: int, reverse: bool) -> Any:
        """`wf.scan`; `run` with the same arguments is the loop in plain Python."""
        return run(combine_fn, init, xs, dim, reverse)

    # -- what else happens, and may matter to who records calls

    def draw(self, generator: Any, key: tuple[int, int]) -> None:
        """A random key was taken from a generator; one that was put back gives the same key again."""

    def generator_state_read(self, state: Any) -> None:
        """The state of a generator was given out, as this tensor."""

    def generator_state_set(self, state: Any) -> None:
        """A generator is about to be set to a state."""

    def not_replayable(self, reason: str) -> None:
        """What happens here cannot be done again without Python."""

    def unseen_input(self, reason: str) -> None:
        """What runs takes something in that no op shows: memory that others hold, how often a tensor was written."""

    def effect(self, reason: str) -> None:
        """Python with effects of its own runs: the hooks of a module, another map."""

    def step_state_used(self, owner: Any, name: str) -> None:
        """An attribute that changes with every step (of an optimiser, a scheduler) is read or set, by the code three
        frames above this method: the user's, or ours."""


class Interceptor(Executor):
    """The common part of all other ways: every op goes through `apply`, so nobody works on arrays past it."""

    __slots__ = ()

    works_on_arrays = False
    allows_batches = False

    def may_read(self, *tensors: Any) -> bool:
        """No: a check must not read values that were not needed so far."""
        return False

    def is_contiguous(self, tensor: Any) -> bool:
        """It is not known."""
        return False

    def is_copy(self, out: Any) -> bool:
        """It cannot be told."""
        return False

    def before_update(self, name: str) -> None:
        """Refuse to change arrays past the ops."""
        raise OperationError(f"{name}: an update in place cannot run inside vmap, fused or a trace",
                             fix="Call it outside the function.")  # fmt: skip


# The executor in force where there is no other.
EAGER = Executor()
