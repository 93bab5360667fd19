"""What Python runs when somebody outside asks for a gradient of a call: hooks, and the backward of custom Functions.

Without compile they see what is there at that time. A recorded backward has seen what was there when it was recorded,
so a call with one that may see something else is not replayed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from wayfare.autograd.function import FunctionCtx, class_of
from wayfare.compiler.captures.location import HINT, Place, is_leaf
from wayfare.compiler.captures.purity import is_user_class, is_user_module
from wayfare.compiler.captures.reach import reach
from wayfare.compiler.record.recorder_state import GiveUp
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor

# What is found by name and stays what it is: code.
_CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType, staticmethod,
    classmethod, property, type,
)  # fmt: skip
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__class__", "__mro__"})
_OWN = frozenset(FunctionCtx("").__dict__)


def refuse_what_may_change(nodes: Sequence[Node], seeds: int) -> list[Tensor]:
    """Give up where Python that runs with the gradient of these nodes may see, or do, something else each time.

    Gives the tensors that backwards find as attributes of their contexts.
    """
    tensors: list[Tensor] = []
    for node in nodes:
        extras = node.extras
        if extras is not None and (extras.tensor_hooks or extras.pre_hooks or extras.post_hooks):
            raise GiveUp("hooks that it registers are called when somebody outside asks for a gradient")
        if extras is not None and any(reference() is not None for reference in extras.retained.values()):
            raise GiveUp("retain_grad() inside is about a gradient that is computed outside the function")
        if node.op.family == "custom" and node.kept is not None and isinstance(node.kept[0], FunctionCtx):
            _look_at(node, node.kept[0], seeds, tensors)
    return tensors


def _look_at(node: Node, ctx: FunctionCtx, seeds: int, tensors: list[Tensor]) -> None:
    cls = class_of(node.op)
    name = node.op.name
    if cls is not None and is_user_class(cls):
        found = what_may_change(cls.backward)
        if found:
            raise GiveUp(f"the backward of {name} {found}, which may be another one when a gradient is asked for "
                         "outside the function")  # fmt: skip
    for key, value in vars(ctx).items():
        if key not in _OWN and not _is_fixed(value, tensors):
            raise GiveUp(f"the backward of {name} may see what `ctx.{key}` becomes before a gradient is asked for "
                         "outside the function")  # fmt: skip
    if not ctx._materialize and node.outs is not None and len(node.outs) > 1 and seeds > 1:
        raise GiveUp(f"the backward of {name} is told which of its results got a gradient")


def what_may_change(function: Any) -> str:
    """What a function reads that may change between two calls, in words; "" if there is nothing."""
    seen = reach(function)
    if seen.unguardable is not None:
        return f"cannot be foreseen: {seen.unguardable}"
    for place in seen.places:
        if place.live and not _is_code(place):
            return f"reads {place.path.called()}"
    return ""


def _is_code(place: Place) -> bool:
    if place.kind == "absent" or place.how is HINT or place.key in _OF_FUNCTIONS or isinstance(place.value, _CODE):
        return True
    # A name of a library's module: `math.pi`.
    holder = place.holder
    module = sys.modules.get(holder.get("__name__", "")) if isinstance(holder, dict) else None
    return module is not None and module.__dict__ is holder and not is_user_module(module)


def _is_fixed(value: Any, tensors: list[Tensor]) -> bool:
    """Is it something that will be the same later? Tensors are, but for their numbers."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return True
    if type(value) is tuple:
        return all(_is_fixed(v, tensors) for v in value)
    if isinstance(value, types.FunctionType):
        return not what_may_change(value)
    return is_leaf(value) or isinstance(value, _CODE)
