"""`repr(tensor)`: numbers laid out as PyTorch lays them out, and statistics for a large tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.core.config import settings
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS, bool_, default_dtype, int64
from wayfare.core.tensor import Tensor

Format = Callable[[Any], str]


def _formatter(values: Array) -> tuple[Format, int]:
    """How to write one element, and how wide the widest is. Decided from all elements that are shown."""
    options = settings.printing
    if values.dtype.kind not in FLOAT_KINDS:
        width = max((len(str(v)) for v in values.reshape(-1).tolist()), default=1)
        return str, width
    wide = values.astype(np.float64).reshape(-1)
    finite = wide[np.isfinite(wide) & (wide != 0)]
    precision = options.precision
    write: Format = lambda v: f"{v:.{precision}f}"
    if finite.size:
        sizes = np.abs(finite)
        largest, smallest = float(sizes.max()), float(sizes.min())
        whole = bool((finite == np.ceil(finite)).all())
        if whole:
            scientific = largest / smallest > 1000.0 or largest > 1.0e8
            write = lambda v: f"{v:.0f}." if math.isfinite(v) else str(v)
        else:
            scientific = largest / smallest > 1000.0 or largest > 1.0e8 or smallest < 1.0e-4
        if options.sci_mode is not None:
            scientific = options.sci_mode
        if scientific:
            write = lambda v: f"{v:.{precision}e}"
    elif wide.size:
        write = lambda v: f"{v:.0f}." if math.isfinite(v) else str(v)
    # As in PyTorch, zeros, infinities and NaN take no part in deciding how wide a column is.
    return write, max((len(write(float(v))) for v in finite), default=1)


def _lines(values: Array, indent: int, write: Format, width: int, summarise: bool) -> str:
    options = settings.printing
    edge = options.edgeitems
    if values.ndim == 0:
        return write(values.item()).rjust(width)
    if values.ndim == 1:
        per_line = max(1, (options.linewidth - indent) // (width + 2))
        if summarise and len(values) > 2 * edge:
            cells = [write(v).rjust(width) for v in values[:edge].tolist()] + [" ..."]
            cells += [write(v).rjust(width) for v in values[-edge:].tolist()]
        else:
            cells = [write(v).rjust(width) for v in values.tolist()]
        rows = [", ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(rows) + "]"
    if summarise and len(values) > 2 * edge:
        parts = [_lines(v, indent + 1, write, width, summarise) for v in values[:edge]] + ["..."]
        parts += [_lines(v, indent + 1, write, width, summarise) for v in values[-edge:]]
    else:
        parts = [_lines(v, indent + 1, write, width, summarise) for v in values]
    return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _shown(values: Array, summarise: bool) -> Array:
    """Only the elements that will be written decide how they are written."""
    edge = settings.printing.edgeitems
    if summarise:
        for axis, size in enumerate(values.shape):
            if size > 2 * edge:
                keep = [*range(edge), *range(size - edge, size)]
                values = values.take(keep, axis=axis)
    return values


def _statistics(values: Array) -> str:
    if values.dtype.kind == "b":
        return f"{int(values.sum())} of {values.size} are True"
    text = f"min {values.min():.4g}, max {values.max():.4g}, mean {values.mean(dtype=np.float64):.4g}"
    if values.dtype.kind in FLOAT_KINDS:
        bad = int(np.isnan(values).sum())
        if bad:
            fine = values[~np.isnan(values)]
            text = (
                f"min {fine.min():.4g}, max {fine.max():.4g}, mean {fine.mean(dtype=np.float64):.4g}"
                if fine.size
                else "no number at all"
            )
        text += f", NaN {bad}"
    return text


def tensor_text(t: Tensor) -> str:
    """What `repr` shows."""
    prefix = "tensor("
    values = t._read("repr()")
    summarise = values.size > settings.printing.threshold
    suffixes: list[str] = []
    if values.size == 0:
        body = "[]"
        if values.ndim != 1:
            suffixes.append(f"size={tuple(values.shape)}")
    else:
        write, width = _formatter(_shown(values, summarise))
        body = _lines(values, len(prefix), write, width, summarise)
    if t.device.type != "cpu":
        suffixes.append(f"device='{t.device}'")
    named = {default_dtype(), int64, bool_}
    if t.dtype not in named or (values.size == 0 and t.dtype is not default_dtype()):
        suffixes.append(f"dtype={t.dtype}")
    # A tensor that is still to be computed knows what made it, without a node.
    told = getattr(t, "_history_name", None)
    node = None if told else t.grad_fn
    history = told() if told else "" if node is None else node.name()
    if history:
        suffixes.append(f"grad_fn=<{history}>")
    elif t.requires_grad:
        suffixes.append("requires_grad=True")
    text = prefix + body
    last = len(text) - text.rfind("\n") - 1
    for suffix in suffixes:
        if last + len(suffix) + 2 > settings.printing.linewidth:
            text += ",\n" + " " * len(prefix) + suffix
            last = len(prefix) + len(suffix)
        else:
            text += ", " + suffix
            last += len(suffix) + 2
    text += ")"
    if values.size > max(settings.statistics_threshold, settings.printing.threshold):
        text += f"\n# {t.spec!r}: {_statistics(values)}"
    return text


def _with_role(t: Tensor) -> str:
    role = getattr(t, "_role", "")
    return f"{role} containing:\n{tensor_text(t)}" if role else tensor_text(t)


Tensor.__repr__ = _with_role  # type: ignore[method-assign, assignment]
