"""What to say when an op fails: the shape rule's own sentence, or how much memory was missing."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.device import device_fault
from wayfare.core.errors import LoopError, OperationError, OutOfMemoryError, WayfareError
from wayfare.core.format import bytes_text
from wayfare.core.op import Op
from wayfare.core.spec import OF_NUMPY


def explain_failure(op: Op, specs: Sequence[Any], attrs: dict[str, Any], error: BaseException) -> BaseException:
    """The error to show for a failed forward: the shape rule's own sentence if it has one."""
    # A loop knows nothing of the op it is part of: the shape rule has the better sentence.
    if isinstance(error, WayfareError) and not isinstance(error, LoopError):
        error.failed_on(op.name, specs)
        return error
    shown = ", ".join(map(repr, specs))
    if isinstance(error, MemoryError):
        return memory_error(op.name, error, shown)
    try:
        made = op.infer(*specs, **attrs)
        for spec in made if isinstance(made, (tuple, list)) else (made,):
            if math.prod(spec.shape) * spec.dtype.itemsize > sys.maxsize:  # NumPy cannot even count them
                return no_memory(op.name, spec.shape, spec.dtype.numpy, shown)
    except WayfareError as sentence:
        sentence.failed_on(op.name, specs)
        return sentence
    except Exception:
        pass
    return _fallback_error(op, shown, error)


_WAY_OUT = (
    "Compute fewer elements at a time (a smaller batch), or keep less: wf.no_grad() where no gradient is wanted, "
    "wf.utils.checkpoint.checkpoint where one is."
)


def no_memory(op: str, shape: Sequence[int], dtype: Any, given: str = "") -> OutOfMemoryError:
    """The error of an array that the machine has no room for; `dtype` is NumPy's, `given` what the op was called on."""
    numpy_dtype = np.dtype(dtype)
    known = OF_NUMPY.get(numpy_dtype)
    what = f"{known.short if known is not None else numpy_dtype}[{','.join(map(str, shape))}]"
    size = math.prod(shape) * numpy_dtype.itemsize
    source = f", from {given}" if given else ""
    return OutOfMemoryError(f"{op}: not enough memory for {what} ({bytes_text(size)}){source}", fix=_WAY_OUT)


def memory_error(op: str, error: MemoryError, given: str = "") -> MemoryError:
    """A MemoryError of NumPy or of Python as one of ours; one that is ours already stays as it is."""
    if isinstance(error, WayfareError):
        return error
    there = device_fault(op, error)
    if isinstance(there, MemoryError):
        return there
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is not None and dtype is not None:
        return no_memory(op, shape, dtype, given)
    what = f" for the result from {given}" if given else ""
    return OutOfMemoryError(f"{op}: not enough memory{what}", fix=_WAY_OUT)


def explain_fault(op: str, error: Exception) -> None:
    """Raise the error of a device that has failed as one of ours; any other error is left to the caller."""
    fault = device_fault(op, error)
    if fault is not None:
        try:
            raise fault from error
        finally:
            del fault  # its traceback holds this frame


def _fallback_error(op: Op, shown: str, error: BaseException) -> WayfareError:
    from_numpy = str(error).splitlines()[0] if str(error) else type(error).__name__
    return OperationError(f"{op.name}: cannot compute this{' on ' * bool(shown)}{shown}: {from_numpy}")

