"""May an op of the registry be called so? Records trust their callers; a file is trusted with nothing.

What the samples of a record look like (how many inputs, which attributes, of which kinds) is what a file may say.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

import numpy as np

from wayfare.fusion.sizes import Dim, Number
from wayfare.onnx.program import Var
from wayfare.op import REGISTRY, Op
from wayfare.ops.recurrence_onnx import Repeated
from wayfare.program.numbers import Bad
from wayfare.spec import DType, Spec, bool_

# Ops that take as many inputs as they are given.
_ANY_NUMBER = frozenset({"cat", "stack", "einsum", "index", "index_put", "index_place"})
# Attributes that count or place something, and those of them that cannot be zero.
_NOT_NEGATIVE = frozenset({
    "stride", "padding", "dilation", "kernel", "groups", "counts", "sizes", "size", "shape", "dim", "dims", "dim1",
    "dim2", "start", "stop", "step", "layout", "k", "classes", "n",
})  # fmt: skip
_POSITIVE = frozenset({"dilation", "kernel", "groups", "step"})
# Inputs that take no part in the dtype: conditions, masks, places.
_MIXED = frozenset({"where", "gate", "cast", "resample", "resample_back"})
_ONE_DTYPE = frozenset({
    "elementwise", "contraction", "normalisation", "softmax", "loss", "recurrence", "attention", "joining", "indexing",
    "scan", "segments",
})  # fmt: skip


# What something in an attribute is, and how deep in tuples.
Kind = tuple[str, int]


class _Usage:
    """What the samples of a record tell of its calls."""

    def __init__(self, op: Op) -> None:
        samples = list(op.samples(np.random.default_rng(0)))
        self.counts = {len(s.inputs) for s in samples}
        self.names = {name for s in samples for name in s.attrs}
        self.needed = set.intersection(*[set(s.attrs) for s in samples])
        self.kinds: dict[str, set[Kind]] = {name: set() for name in self.names}
        for sample in samples:
            for name, value in sample.attrs.items():
                _collect(value, self.kinds[name])


def _collect(value: Any, kinds: set[Kind], depth: int = 0) -> None:
    """The kinds of everything in an attribute."""
    if isinstance(value, (tuple, list)):
        kinds.add(("tuple", depth))
        for part in value:
            _collect(part, kinds, depth + 1)
    elif isinstance(value, Repeated):
        kinds.update((("tuple", depth), ("int", depth + 1)))
    else:
        kinds.add((_kind(value), depth))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, np.integer)):
        return "int"
    if isinstance(value, (float, np.floating)):
        return "float"
    return "none" if value is None else "dtype" if isinstance(value, DType) else "text"


@lru_cache(maxsize=512)
def _usage(name: str) -> _Usage:
    return _Usage(REGISTRY[name])


def check_call(name: Any, inputs: list[Var], attrs: dict[str, Any], outputs: list[Var], limit: int) -> Op:
    """The op of that name, if it can be called with these and gives these, and needs no more room on its way."""
    op = REGISTRY.get(name) if isinstance(name, str) else None
    if op is None:
        raise Bad(f"there is no op {str(name)[:40]!r}")
    if op.random:
        raise Bad(f"{name} draws random numbers, and a program has none")
    specs = [Spec(v.shape, v.dtype) for v in inputs]
    made = _inferred(op, specs, attrs)
    if len(made) != len(outputs):
        raise Bad(f"{name} gives {len(made)} values, not {len(outputs)}")
    for spec, var in zip(made, outputs, strict=True):
        if spec.dtype is not var.dtype or tuple(map(int.__int__, spec.shape)) != tuple(map(int.__int__, var.shape)):
            raise Bad(f"{name} gives {spec}, not {Spec(var.shape, var.dtype)}")
    room = _room(op.name, specs, attrs) * (specs[0].dtype.itemsize if specs else 1)
    if room > limit:
        raise Bad(f"{name} would need {room:,} bytes on its way, over the {limit:,} allowed")
    return op


def _room(name: str, specs: list[Spec], attrs: dict[str, Any]) -> int:
    """How many elements an op makes on its way to the result, where that can be more than it takes and gives."""
    if "stride" in attrs and "layout" in attrs:
        own = attrs["size"] if "size" in attrs else specs[0].shape
        given = specs[0].shape if "size" in attrs else attrs["shape"]
        reaches = [
            sum(max(n - 1, 0) * step for n, step in zip(_numbers_in(tuple(sizes)), _numbers_in(steps), strict=False))
            for sizes, steps in ((given, attrs["layout"]), (own, attrs["stride"]))
        ]
        return int(max(reaches)) + int.__int__(attrs["offset"])
    if "stride" in attrs and "padding" in attrs:
        sizes = _numbers_in(attrs["sizes"] if "sizes" in attrs else tuple(specs[0].shape[2:]))
        kernel = _numbers_in(attrs["kernel"] if "kernel" in attrs else tuple(specs[1].shape[2:]))
        counts = _numbers_in(attrs["counts"]) if "counts" in attrs else [1] * len(sizes)
        total = math.prod(_numbers_in(tuple(specs[0].shape[:2])))
        dilation = _numbers_in(attrs.get("dilation", (1,) * len(sizes)))
        parts = (sizes, kernel, counts, _numbers_in(attrs["stride"]), _numbers_in(attrs["padding"]), dilation)
        if len({len(part) for part in parts}) != 1:
            raise Bad(f"{name} has windows of other dimensions than its input")
        reached = [max(n + 2 * p, (c - 1) * s + d * (k - 1) + 1) for n, k, c, s, p, d in zip(*parts, strict=True)]
        return int(total * math.prod(reached))
    if name in ("one_hot", "pivot_matrix"):
        return max(_numbers_in(tuple(attrs.values()))) ** (1 if name == "one_hot" else 2)  # type: ignore[no-any-return]
    if name == "einsum" and len(specs) > 2:
        terms = attrs["equation"].partition("->")[0].split(",")
        pairs = itertools.combinations(zip(terms, specs, strict=True), 2)
        return max(
            math.prod({label: int.__int__(n) for t, s in pair for label, n in zip(t, s.shape, strict=True)}.values())
            for pair in pairs
        )
    return 0


def _inferred(op: Op, specs: list[Spec], attrs: dict[str, Any]) -> list[Spec]:
    """What an op gives, once its inputs and attributes are known to be of the right kinds."""
    usage = _usage(op.name)
    if (not specs and 0 not in usage.counts) or (len(specs) not in usage.counts and op.name not in _ANY_NUMBER):
        raise Bad(f"{op.name} takes {' or '.join(map(str, sorted(usage.counts)))} inputs, not {len(specs)}")
    unknown = attrs.keys() - usage.names
    if unknown or usage.needed - attrs.keys():
        raise Bad(f"{op.name} has the attributes {', '.join(sorted(usage.names)) or 'none'}, not "
                  f"{', '.join(sorted(attrs))[:80] or 'none'}")  # fmt: skip
    for name, value in attrs.items():
        if name != "path":
            _check_attribute(op.name, name, value, usage.kinds[name])
    _check_dtypes(op, specs)
    _check_dims(op.name, specs, attrs)
    if op.name in ("look_through", "write_through"):
        _check_path(op.name, specs, attrs["path"])
    try:
        made = op.infer(*specs, **{name: _written_out(value) for name, value in attrs.items()})
    except Exception as error:
        why = str(error).splitlines()[0][:120] if str(error) else repr(error)
        raise Bad(f"{op.name} cannot be called so: {why}") from None
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _written_out(value: Any) -> Any:
    return (int.__int__(value.value),) * int.__int__(value.times) if isinstance(value, Repeated) else value


def _check_attribute(op: str, name: str, value: Any, allowed: set[Kind]) -> None:
    found: set[Kind] = set()
    _collect(value, found)
    allowed = allowed | {("int", depth) for kind, depth in allowed if kind == "float"}
    if isinstance(value, Repeated) and REGISTRY[op].family != "recurrence":
        raise Bad(f"{op} has {value!r} for {name}")
    if name == "key" and value is not None:
        raise Bad(f"{op} draws random numbers, and a program has none")
    if not found <= allowed | ({("none", 0)} if name in ("key", "padding_idx") else set()):
        raise Bad(f"{op} has {str(value)[:40]!r} for {name}")
    if name in _NOT_NEGATIVE:
        least = 1 if name in _POSITIVE or (name == "stride" and op != "as_strided") else 0
        if any(n < least for n in _numbers_in(value)):
            raise Bad(f"{op} has {str(value)[:40]!r} for {name}, and none of it can be less than {least}")


def _numbers_in(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [n for part in value for n in _numbers_in(part)]
    if isinstance(value, Repeated):
        return [int.__int__(value.value), int.__int__(value.times)]
    if isinstance(value, (Dim, Number)):
        return [int.__int__(value) if isinstance(value, Dim) else float.__float__(value)]
    return [value] if isinstance(value, (int, float)) else []


def _check_dtypes(op: Op, specs: list[Spec]) -> None:
    """Native loops read memory as the first input's dtype: floats must not be mixed."""
    if specs and specs[0].dtype.numpy.kind not in op.kinds:
        raise Bad(f"{op.name} does not take {specs[0].dtype.name}")
    if op.family in _ONE_DTYPE and op.name not in _MIXED:
        floats = {s.dtype for s in specs if s.dtype.is_floating_point}
        whole = op.family in ("elementwise", "joining") and op.name not in ("at_index", "overwrite")
        if len(floats) > 1 or (whole and len({s.dtype for s in specs}) > 1):
            raise Bad(f"{op.name} is given values of different dtypes")
    if op.name == "where" and (specs[0].dtype is not bool_ or specs[1].dtype is not specs[2].dtype):
        raise Bad("where is given values of different dtypes")


def _check_dims(name: str, specs: list[Spec], attrs: dict[str, Any]) -> None:
    """Dimensions must be there."""
    rank = specs[0].ndim if specs else 0
    for attribute in ("dim", "dims", "dim1", "dim2"):
        numbers = _numbers_in(attrs.get(attribute, ()))
        # What puts values into a shape counts the dimensions of that; a stack has one more.
        room = len(attrs["shape"]) if "shape" in attrs else max(rank, 1) + (name == "stack")
        if any(n >= room for n in numbers) or len(set(numbers)) != len(numbers):
            raise Bad(f"{name} has {str(attrs[attribute])[:40]} for {attribute}, and its input {rank} dimensions")
    if name in ("permute", "transpose", "t") and sorted(attrs["dims"]) != list(range(rank)):
        raise Bad(f"{name} has {str(attrs['dims'])[:40]} for dims, and its input {rank} dimensions")


def _check_path(name: str, specs: list[Spec], path: Any) -> None:
    """A chain of views: each a view op, called as it can be."""
    spec = specs[0]
    if not isinstance(path, tuple) or len(path) > 64:
        raise Bad(f"{name} has no chain of views")
    for step in path:
        if not (isinstance(step, tuple) and len(step) == 2 and isinstance(step[1], tuple)):
            raise Bad(f"{name} has no chain of views")
        view = REGISTRY.get(step[0]) if isinstance(step[0], str) else None
        if view is None or not view.view:
            raise Bad(f"{name} goes through {str(step[0])[:40]!r}, which is no view")
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in step[1]):
            raise Bad(f"{name} has no chain of views")
        (spec,) = _inferred(view, [spec], dict(step[1]))
