"""Python code that runs later, in a backward pass after the call: hooks, and the backward of custom Functions.

In eager mode it reads the state of that time. A recorded backward has read the state of the recording. So a call whose
deferred code may read something that changes is not replayed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from wayfare.autograd.function import FunctionCtx, class_of
from wayfare.compiler.captures.location import HINT, Location, is_leaf
from wayfare.compiler.captures.purity import is_user_class, is_user_module
from wayfare.compiler.captures.reach import reach
from wayfare.compiler.record.recorder_state import GiveUp
from wayfare.core.native import NATIVE
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor

# Types of values that count as code, which does not change.
_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType, staticmethod,
    classmethod, property, type, *(() if NATIVE is None else (NATIVE.Method, NATIVE.ViewMethod)),
)  # fmt: skip
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__class__", "__mro__"})
_OWN = frozenset(FunctionCtx("").__dict__)


def refuse_what_may_change(nodes: Sequence[Node], seeds: int) -> list[Tensor]:
    """Raise `GiveUp` if Python code that runs in the backward of these nodes may do something else each time.

    Returns the tensors that custom backwards find as attributes of their contexts.
    """
    tensors: list[Tensor] = []
    for node in nodes:
        extras = node.extras
        if extras is not None and (extras.tensor_hooks or extras.pre_hooks or extras.post_hooks):
            raise GiveUp("hooks that it registers run in a backward pass after the call")
        if extras is not None and any(reference() is not None for reference in extras.retained.values()):
            raise GiveUp("retain_grad() inside the function needs a gradient that is computed after the call")
        if node.op.family == "custom" and node.kept is not None and isinstance(node.kept[0], FunctionCtx):
            _check_context(node, node.kept[0], seeds, tensors)
    return tensors


def _check_context(node: Node, ctx: FunctionCtx, seeds: int, tensors: list[Tensor]) -> None:
    cls = class_of(node.op)
    name = node.op.name
    if cls is not None and is_user_class(cls):
        found = what_may_change(cls.backward)
        if found:
            raise GiveUp(f"the backward of {name} {found}, which may have changed when the gradient is "
                         "computed after the call")  # fmt: skip
    for key, value in vars(ctx).items():
        if key not in _OWN and not _is_fixed(value, tensors):
            raise GiveUp(f"the backward of {name} may read `ctx.{key}`, which may have changed when the "
                         "gradient is computed after the call")  # fmt: skip
    if not ctx._materialize and node.outs is not None and len(node.outs) > 1 and seeds > 1:
        raise GiveUp(f"the backward of {name} receives None for results without a gradient")


def what_may_change(function: Any) -> str:
    """What a function reads that may change between two calls, in words; "" if nothing."""
    seen = reach(function)
    if seen.unguardable is not None:
        return f"cannot be guarded ({seen.unguardable})"
    for location in seen.locations:
        if location.live and not _is_code(location):
            return f"reads {location.path.called()}"
    return ""


def _is_code(location: Location) -> bool:
    if location.kind == "absent" or location.how is HINT or location.key in _OF_FUNCTIONS:
        return True
    if isinstance(location.value, _CODE):
        return True
    # A name in the module of a library: `math.pi`.
    holder = location.holder
    module = sys.modules.get(holder.get("__name__", "")) if isinstance(holder, dict) else None
    return module is not None and module.__dict__ is holder and not is_user_module(module)


def _is_fixed(value: Any, tensors: list[Tensor]) -> bool:
    """Does a value stay the same until the backward pass? Tensors do, apart from their numbers."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return True
    if type(value) is tuple:
        return all(_is_fixed(v, tensors) for v in value)
    if isinstance(value, types.FunctionType):
        return not what_may_change(value)
    return is_leaf(value) or isinstance(value, _CODE)
