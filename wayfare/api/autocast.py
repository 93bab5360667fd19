"""Mixed precision as users call it: `wf.autocast`, what is in force, and functions that follow it as a whole."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from wayfare.core.autocast import DEFAULTS, Autocast, is_eligible
from wayfare.core.autocast import cast_inputs as cast_inputs_of
from wayfare.core.callsite import outside_frames
from wayfare.core.device import backend
from wayfare.core.dispatch import apply1
from wayfare.core.errors import ArgumentTypeError, OperationError, WrongKindError
from wayfare.core.mode import STATE, UNUSUAL, changed_mode, current, set_mode
from wayfare.core.pytree import flatten, rebuild
from wayfare.core.spec import NARROW, DType, as_dtype
from wayfare.core.tensor import Tensor

__all__ = [
    "autocast", "clear_autocast_cache", "custom_bwd", "custom_fwd", "get_autocast_cpu_dtype", "get_autocast_dtype",
    "get_autocast_gpu_dtype", "is_autocast_available", "is_autocast_cache_enabled", "is_autocast_cpu_enabled",
    "is_autocast_enabled", "set_autocast_cache_enabled", "set_autocast_cpu_dtype", "set_autocast_cpu_enabled",
    "set_autocast_dtype", "set_autocast_enabled", "set_autocast_gpu_dtype",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

_DEVICES = ("cpu", "cuda")


def _device(op: str, device_type: Any) -> str:
    kind = device_type.partition(":")[0] if isinstance(device_type, str) else None  # "cuda:0" is one of "cuda"
    if kind is None or kind not in _DEVICES:
        raise WrongKindError(f"{op}: device_type must be 'cpu' or 'cuda', not {device_type!r}",
                             fix="Write device.type for that of a device.")  # fmt: skip
    return kind


def _flag(op: str, name: str, value: Any) -> bool:
    if value.__class__ is not bool:
        raise ArgumentTypeError(f"{op}: {name} must be True or False, not {value!r}")
    return bool(value)


def has_gpu() -> bool:
    """Is there a GPU to compute on?"""
    try:
        backend("cuda").check(0)
    except OperationError:
        return False
    return True


def _narrow(op: str, dtype: Any) -> DType:
    found = as_dtype(dtype, op=op)
    if found not in NARROW:
        raise ArgumentTypeError(f"{op}: autocast runs ops in wf.bfloat16 or wf.float16, not in {found}",
                                fix="Leave autocast out to compute in another dtype.")  # fmt: skip
    return found


def _with(kind: str, dtype: DType | None, caches: bool) -> Autocast | None:
    """The state of autocast with another dtype for a kind of device; None: off."""
    state: Autocast = current().autocast or Autocast({}, caches)
    return state.changed(kind, dtype, caches)


class autocast(changed_mode):
    """`with wf.autocast("cpu"):` — inside, matrix products, convolutions, attention and recurrences run in a narrow
    float (bfloat16 on the CPU, float16 on CUDA, or `dtype`), and losses in float32, as in PyTorch.

    It is a context manager and a decorator. Weights stay float32; each is cast once in a block, if `cache_enabled`, and
    its gradient arrives in float32. `enabled=False` inside a block switches it off. For "cuda" where there is no GPU it
    is off, with a warning, as in PyTorch.
    """

    __slots__ = ("_cache_enabled", "_dtype", "_enabled", "_kind")

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        self._kind = _device("autocast", device_type)
        self._enabled = _flag("autocast", "enabled", enabled)
        self._dtype = None if dtype is None or not enabled else _narrow("autocast", dtype)
        self._cache_enabled = None if cache_enabled is None else _flag("autocast", "cache_enabled", cache_enabled)
        if enabled and self._kind == "cuda" and not has_gpu():
            warnings.warn("autocast: there is no GPU, so it is off; for the CPU write autocast('cpu')",
                          stacklevel=outside_frames())  # fmt: skip
            self._enabled = False
        super().__init__()

    def __enter__(self) -> autocast:
        dtype = (self._dtype or DEFAULTS.dtypes[self._kind]) if self._enabled else None
        caches = DEFAULTS.caches if self._cache_enabled is None else self._cache_enabled
        self._changes = {"autocast": _with(self._kind, dtype, caches)}
        super().__enter__()
        return self

    def __call__(self, function: F) -> F:
        """The function, run inside such a block."""

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with autocast(self._kind, self._dtype, self._enabled, self._cache_enabled):
                return function(*args, **options)

        return call  # type: ignore[return-value]


# -- what is in force -------------------------------------------------------------------------------------------------


def is_autocast_available(device_type: str) -> bool:
    """Does autocast know this kind of device?"""
    return device_type in _DEVICES


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Is autocast on in this thread for a kind of device? (Without an argument for CUDA, as in PyTorch.)"""
    kind, state = _device("is_autocast_enabled", device_type), current().autocast
    return state is not None and kind in state.dtypes


def get_autocast_dtype(device_type: str) -> DType:
    """The narrow dtype of autocast for a kind of device."""
    kind = _device("get_autocast_dtype", device_type)
    state = current().autocast
    return DEFAULTS.dtypes[kind] if state is None else state.dtypes.get(kind, DEFAULTS.dtypes[kind])


def set_autocast_enabled(device_type: str, enabled: bool) -> None:
    """Switch autocast on or off in this thread, until the block around ends."""
    kind = _device("set_autocast_enabled", device_type)
    dtype = get_autocast_dtype(kind) if _flag("set_autocast_enabled", "enabled", enabled) else None
    set_mode(current().replace(autocast=_with(kind, dtype, DEFAULTS.caches)))


def set_autocast_dtype(device_type: str, dtype: Any) -> None:
    """The narrow dtype that autocast takes from now on in this thread where a block names none."""
    kind, found = _device("set_autocast_dtype", device_type), _narrow("set_autocast_dtype", dtype)
    DEFAULTS.change(DEFAULTS.dtypes | {kind: found}, DEFAULTS.caches)
    if is_autocast_enabled(kind):
        set_mode(current().replace(autocast=_with(kind, found, DEFAULTS.caches)))


def is_autocast_cache_enabled() -> bool:
    """Is a weight cast only once in a block?"""
    state = current().autocast
    return DEFAULTS.caches if state is None else state.caches


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Cast a weight only once in a block, or each time it is used."""
    DEFAULTS.change(DEFAULTS.dtypes, bool(enabled))
    state = current().autocast
    if state is not None:
        state.caches = bool(enabled)


def clear_autocast_cache() -> None:
    """Forget the weights that were cast in this block."""
    state = current().autocast
    if state is not None:
        state.clear()


def is_autocast_cpu_enabled() -> bool:
    """`is_autocast_enabled("cpu")`, by its older name."""
    return is_autocast_enabled("cpu")


def get_autocast_cpu_dtype() -> DType:
    """`get_autocast_dtype("cpu")`, by its older name."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> DType:
    """`get_autocast_dtype("cuda")`, by its older name."""
    return get_autocast_dtype("cuda")


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """`set_autocast_enabled("cpu", enabled)`, by its older name."""
    set_autocast_enabled("cpu", enabled)


def set_autocast_cpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cpu", dtype)`, by its older name."""
    set_autocast_dtype("cpu", dtype)


def set_autocast_gpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cuda", dtype)`, by its older name."""
    set_autocast_dtype("cuda", dtype)


# -- functions that follow it as a whole ------------------------------------------------------------------------------


def follows_autocast(policies: tuple[str, str]) -> Callable[[F], F]:
    """For a function that is no record: while autocast is on, its floating arguments are cast by this policy, and
    autocast is off inside. (A record says the same by its field `autocast`.)"""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            mode = STATE.mode if UNUSUAL else None
            if mode is None or mode.autocast is None:
                return function(*args, **options)
            args, options = _cast_all(lambda ts: cast_inputs_of(mode.autocast, policies, ts, apply1), args, options)
            with changed_mode(autocast=None):
                return function(*args, **options)

        return call  # type: ignore[return-value]

    return decorate


def _cast_all(cast: Callable[[tuple[Tensor, ...]], Any], *arguments: Any) -> Any:
    """Arguments with their tensors replaced by what `cast` makes of all of them."""
    tensors: list[Tensor] = []
    floats: list[float] = []
    shape = flatten(arguments, tensors, floats)
    return rebuild(shape, iter(cast(tuple(tensors))), iter(floats))


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """For the `forward` of a custom Function: `cast_inputs` is the dtype of its floating inputs while autocast is on,
    and autocast is off inside then. `custom_bwd` runs its `backward` in the state of the forward."""
    kind = _device("custom_fwd", device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def call(*args: Any, **options: Any) -> Any:
        state = current().autocast
        args[0]._autocast = state
        if cast_inputs is None or state is None or kind not in state.dtypes:
            return fwd(*args, **options)
        args[0]._autocast = inside = state.changed(kind, None, state.caches)
        wanted = as_dtype(cast_inputs, op="custom_fwd")
        args, options = _cast_all(lambda ts: [t.to(wanted) if is_eligible(t) else t for t in ts], args, options)
        with changed_mode(autocast=inside):
            return fwd(*args, **options)

    return call


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """For the `backward` of a custom Function: it runs with autocast as `forward` did, under `custom_fwd`."""
    _device("custom_bwd", device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def call(*args: Any, **options: Any) -> Any:
        with changed_mode(autocast=args[0]._autocast):
            return bwd(*args, **options)

    return call
