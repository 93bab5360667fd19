"""`wf.autograd.functional`: Jacobians and the like of a function at given inputs, as in `torch.autograd.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.autograd import jacobians, transforms
from wayfare.core.tensor import Tensor

Function = Callable[..., Any]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _settle(result: Any, create_graph: bool) -> Any:
    """Cut the results from the graph unless they are to be differentiated."""
    if create_graph:
        return result
    leaves, rebuild = transforms.flatten(result)
    return rebuild([x.detach() if isinstance(x, Tensor) else x for x in leaves])


def jacobian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The Jacobian of `func` at `inputs`: a tensor, or nested tuples of them for several inputs or outputs."""
    several = isinstance(inputs, (tuple, list))
    transform = jacobians.jacfwd if strategy == "forward-mode" else jacobians.jacrev
    numbers = tuple(range(len(_as_tuple(inputs))))
    return _settle(transform(func, argnums=numbers if several else 0)(*_as_tuple(inputs)), create_graph)


def hessian(
    func: Function, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The second derivatives of `func` (one number out) at `inputs`."""
    several = isinstance(inputs, (tuple, list))
    numbers = tuple(range(len(_as_tuple(inputs))))
    return _settle(jacobians.hessian(func, argnums=numbers if several else 0)(*_as_tuple(inputs)), create_graph)


def vjp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(outputs, v times the Jacobian); `v` may be left out when the output is one number."""
    outputs, pull = transforms.vjp(func, *_as_tuple(inputs))
    if v is None:
        leaves, rebuild = transforms.flatten(outputs)
        v = rebuild([x.detach() * 0 + 1 for x in leaves])
    pulled = pull(v)
    result = pulled if isinstance(inputs, (tuple, list)) else pulled[0]
    return _settle((outputs, result), create_graph)


def jvp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(outputs, the Jacobian times v); `v` may be left out when the input is one number."""
    given = _as_tuple(inputs)
    directions = tuple(x.detach() * 0 + 1 for x in given) if v is None else _as_tuple(v)
    return _settle(transforms.jvp(func, given, directions), create_graph)


def hvp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(output, the Hessian times v)."""
    given = _as_tuple(inputs)
    directions = tuple(x.detach() * 0 + 1 for x in given) if v is None else _as_tuple(v)
    value = func(*given)
    numbers = tuple(range(len(given)))
    _, pushed = transforms.jvp(transforms.grad(func, argnums=numbers), given, directions)
    return _settle((value, pushed if isinstance(inputs, (tuple, list)) else pushed[0]), create_graph)


def vhp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """(output, v times the Hessian); the Hessian is symmetric, so this is `hvp`."""
    return hvp(func, inputs, v, create_graph, strict)
