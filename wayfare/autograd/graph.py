"""`wf.autograd.graph`: the graph's own names, as in `torch.autograd.graph`."""

from typing import TYPE_CHECKING, NoReturn

from wayfare.autograd.modes import saved_tensors_hooks
from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.core.node import Node

__all__ = ["Node", "saved_tensors_hooks"]

_INSTEAD = {
    "register_multi_grad_hook": "call t.register_hook on each tensor, and gather the gradients in the hook",
    "save_on_cpu": "tensors are on the CPU; saved_tensors_hooks(pack, unpack) keeps them elsewhere",
    "GradientEdge": "use t.grad_fn",
    "get_gradient_edge": "use t.grad_fn",
}


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> NoReturn:
        raise _no_such_name(__name__, name, _INSTEAD.get(name))
