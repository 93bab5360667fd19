"""Checks calls of ops that a file describes. Records trust their callers; files are not trusted.

The signature of the record says which calls are valid, its shape rule what they give. Both are checked twice: when the
file is read, with the sizes it claims, and before each op runs, with the real sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from wayfare.core.op import REGISTRY, Op
from wayfare.core.signature import PATH
from wayfare.core.spec import Spec
from wayfare.core.symbolic_sizes import Dim, Number, Repeated
from wayfare.exporters.bundle.json_values import Bad
from wayfare.exporters.bundle.workspace import bytes_of, workspace_of
from wayfare.ir.graph import Value

# Bytes of one step in the tuple of all steps of a recurrence.
_BYTES_OF_A_STEP = 8


def check_call(name: Any, inputs: Sequence[Value], attrs: dict[str, Any], outputs: Sequence[Value], limit: int) -> Op:
    """The op of this name, after checking that it takes these inputs and gives these outputs, at the claimed sizes."""
    op = REGISTRY.get(name) if isinstance(name, str) else None
    if op is None:
        raise Bad(f"there is no op {str(name)[:40]!r}")
    if op.random:
        raise Bad(f"{name} draws random numbers, and a program has none")
    if any(isinstance(value, Repeated) for value in attrs.values()) and op.family != "recurrence":
        raise Bad(f"{name} has a number repeated for an attribute")
    specs = [Spec(_plain(v.shape, limit), v.spec.dtype) for v in inputs]
    made = made_by(op, specs, {key: _plain(value, limit) for key, value in attrs.items()}, limit).made
    if len(made) != len(outputs):
        raise Bad(f"{name} gives {len(made)} values, not {len(outputs)}")
    for spec, value in zip(made, outputs, strict=True):
        if spec.dtype.numpy != value.dtype or tuple(spec.shape) != _plain(value.shape, limit):
            raise Bad(f"{name} gives {spec}, not {value.spec}")
    return op


class Call(NamedTuple):
    """What a call of an op would make."""

    made: list[Spec]
    workspace: int  # bytes in addition to inputs and results

    @property
    def size(self) -> int:
        """Bytes of the results."""
        return bytes_of(self.made)


def made_by(op: Op, specs: Sequence[Spec], attrs: dict[str, Any], limit: int) -> Call:
    """What an op would make, after checking that the call is valid and within the memory limit."""
    signature = op.signature
    assert signature is not None, op.name
    problem = signature.problem(op.name, op.family, op.kinds, specs, attrs)
    if problem:
        raise Bad(problem)
    if attrs.get("key") is not None:
        raise Bad(f"{op.name} draws random numbers, and a program has none")
    for key, known in signature.attrs.items():
        if known is PATH:
            _check_path(op.name, specs[0], attrs[key], limit)
    try:
        made = op.infer(*specs, **attrs)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        workspace = workspace_of(op, specs, results, attrs)
    except Exception as error:
        why = str(error).splitlines()[0][:160] if str(error) else repr(error)
        raise Bad(f"{op.name} cannot be called with these arguments: {why}") from None
    for spec in results:
        if any(n < 0 for n in spec.shape):
            raise Bad(f"{op.name} would give a value of shape {list(spec.shape)}")
        check_size(op.name, spec.shape, spec.dtype.itemsize, limit)
    if workspace > limit:
        raise Bad(f"{op.name} would need {workspace:,} bytes of workspace, over the {limit:,} allowed")
    return Call(results, workspace)


def check_size(name: str, shape: Sequence[int], itemsize: int, limit: int) -> None:
    """Refuse a value of that shape if its bytes are over the limit."""
    # A size of 0 counts as 1: the result is empty, but what is computed on the way may not be.
    count = math.prod(max(n, 1) for n in shape) * itemsize
    if count > limit:
        raise Bad(f"{name} would make a value of shape {list(shape)}, over the {limit:,} bytes allowed")


def _plain(value: Any, limit: int) -> Any:
    """Values of the example's sizes in place of formulas."""
    if isinstance(value, Repeated):
        times = int.__int__(value.times)
        if times * _BYTES_OF_A_STEP > limit:
            raise Bad(f"a recurrence has {times:,} steps, over the {limit:,} bytes allowed")
        return (int.__int__(value.value),) * times
    if isinstance(value, tuple):
        return tuple(_plain(part, limit) for part in value)
    if isinstance(value, Dim):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, Number) else value


def _check_path(name: str, spec: Spec, path: Any, limit: int) -> None:
    """Check a chain of views: each must be a valid call of a view op."""
    if len(path) > 64:
        raise Bad(f"{name} has no chain of views")
    for step in path:
        if not (isinstance(step, tuple) and len(step) == 2 and isinstance(step[1], tuple)):
            raise Bad(f"{name} has no chain of views")
        view = REGISTRY.get(step[0]) if isinstance(step[0], str) else None
        if view is None or not view.view or view.name == "look_through":
            raise Bad(f"{name} goes through {str(step[0])[:40]!r}, which is not a view")
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in step[1]):
            raise Bad(f"{name} has no chain of views")
        (spec,) = made_by(view, [spec], dict(step[1]), limit).made
