"""Mixed precision by autocast: which ops run in a narrow float, which in float32.

Each record says it by its field `autocast`: a policy for the CPU and one for CUDA, by PyTorch's lists. `dispatch` asks
`cast_inputs` for the inputs of an op while autocast is on; so a cast is an op like others, recorded and differentiated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from wayfare.core.mode import current
from wayfare.core.op import REGISTRY
from wayfare.core.spec import DType, bfloat16, float16, float32, float64
from wayfare.core.write_clock import version

# Policies of records, on the CPU and on CUDA.
LOWER = ("lower", "lower")
FLOAT32 = ("float32", "float32")
FLOAT32_ON_CPU = ("float32", "")
FLOAT32_ON_CUDA = ("", "float32")
LOWER_ON_CUDA = ("", "lower")
WIDEST_ON_CUDA = ("", "widest")


class _Defaults(threading.local):
    """What a block of autocast takes where it says nothing, in this thread."""

    def __init__(self) -> None:
        self.change({"cpu": bfloat16, "cuda": float16}, True)

    def change(self, dtypes: dict[str, DType], caches: bool) -> None:
        """Set all of them."""
        self.dtypes, self.caches = dtypes, caches
        # What a recording depends on, since its function may open a block, or ask for these.
        self.key = (caches, *dtypes.values())


DEFAULTS = _Defaults()


class Autocast:
    """What autocast does in a thread. A mode has one while it is on for some kind of device."""

    __slots__ = ("_casts", "caches", "dtypes")

    def __init__(self, dtypes: dict[str, DType], caches: bool, casts: dict[Any, Any] | None = None) -> None:
        # The narrow dtype for each kind of device that autocast is on for.
        self.dtypes = dtypes
        self.caches = caches
        # Weights that were cast in the outermost block: (weight, its array and the version of that, the cast). One cast
        # means one gradient.
        self._casts: dict[Any, tuple[Any, Any, int, Any]] = {} if casts is None else casts

    @property
    def key(self) -> Any:
        """What a recording depends on."""
        return (self.caches, *self.dtypes.items())

    def fresh(self) -> Autocast:
        """The same, with no weight cast so far."""
        return Autocast(self.dtypes, self.caches)

    def changed(self, kind: str, dtype: DType | None, caches: bool) -> Autocast | None:
        """The same with another dtype for a kind of device (None: off); None if it is on for none."""
        dtypes = {k: v for k, v in self.dtypes.items() if k != kind}
        if dtype is not None:
            dtypes[kind] = dtype
        return Autocast(dtypes, caches, self._casts) if dtypes else None

    def clear(self) -> None:
        """Forget the weights that were cast."""
        self._casts.clear()

    def cast(self, t: Any, dtype: DType, run: Callable[..., Any]) -> Any:
        """A tensor in another dtype; a weight is cast once in a block."""
        if t.dtype is dtype:
            return t
        mode = current()
        # A weight: a leaf that wants a gradient. What another executor keeps is its own affair.
        weight = dtype is not float32 and t.dtype is float32 and t._requires_grad and t._edge is None
        if not (weight and self.caches and mode.executor.works_on_arrays):
            return run(REGISTRY["cast"], t, {"dtype": dtype})
        key = (id(t), dtype, mode.grad)
        known = self._casts.get(key)
        if known is not None and known[0] is t and known[1] is t._array and known[2] == version(t._array):
            return known[3]
        made = run(REGISTRY["cast"], t, {"dtype": dtype})
        self._casts[key] = (t, t._array, version(t._array), made)
        return made


def is_eligible(t: Any) -> bool:
    """May autocast change the dtype of this input? float64 says that somebody wants it."""
    return t.dtype.is_floating_point and t.dtype is not float64


def cast_inputs(state: Autocast, policies: tuple[str, str], inputs: tuple[Any, ...], run: Callable[..., Any]) -> Any:
    """The inputs of an op as its policy wants them; `run` applies an op of one input."""
    kind = inputs[0].device.type if inputs else "cpu"
    dtype, policy = state.dtypes.get(kind), policies[kind != "cpu"]
    if dtype is None or not policy:
        return inputs
    floats = [t for t in inputs if is_eligible(t)]
    if policy != "lower" and (policy == "float32" or any(t.dtype is float32 for t in floats)):
        dtype = float32
    if all(t.dtype is dtype for t in floats):
        return inputs
    return tuple([state.cast(t, dtype, run) if is_eligible(t) else t for t in inputs])
