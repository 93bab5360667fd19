"""`gradcheck`: analytic gradients against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wayfare.autograd.backward import grad
from wayfare.autograd.modes import enable_grad
from wayfare.core.device import to_host
from wayfare.core.errors import ArgumentError
from wayfare.core.spec import float64
from wayfare.core.tensor import Tensor, on_device_of


class GradcheckError(RuntimeError):
    """The analytic gradient differs from the numerical one."""


def _outputs(func: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Tensor]:
    made = func(*inputs)
    outs = list(made) if isinstance(made, (tuple, list)) else [made]
    return [o for o in outs if isinstance(o, Tensor) and o.dtype.is_floating_point]


def _numeric(func: Callable[..., Any], inputs: tuple[Any, ...], x: Tensor, which: int, eps: float) -> Any:
    """The Jacobian of output `which` by `x`, one column per element of x."""
    columns = []
    flat = x._array.reshape(-1)
    if not np.may_share_memory(flat, x._array):
        raise ArgumentError("gradcheck: inputs must be contiguous", fix="Pass x.contiguous().")
    for k in range(flat.size):
        old = flat[k].copy()
        flat[k] = old + eps
        up = np.array(to_host(_outputs(func, inputs)[which]._array))
        flat[k] = old - eps
        down = np.array(to_host(_outputs(func, inputs)[which]._array))
        flat[k] = old
        columns.append(((up - down) / (2 * eps)).reshape(-1))
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))


def _analytic(out: Tensor, x: Tensor) -> Any:
    """The same Jacobian, one row per element of the output."""
    rows = []
    for k in range(out._array.size):
        seed = np.zeros(out._array.size)
        seed[k] = 1
        seed_tensor = on_device_of(out, seed.reshape(out._array.shape))
        (found,) = grad([out], [x], [seed_tensor], retain_graph=True, allow_unused=True)
        rows.append(np.zeros(x._array.size) if found is None else to_host(found._array).reshape(-1))
    return np.stack(rows) if rows else np.zeros((0, x._array.size))


def gradcheck(
    func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    raise_exception: bool = True, nondet_tol: float = 0.0, **_ignored: Any,
) -> bool:  # fmt: skip
    """Compare the gradients of `func` at `inputs` with finite differences; True, or an error that shows the gap.

    The tensors to check must be float64, require a gradient and be leaves.
    """
    given: tuple[Any, ...] = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    checked = [t for t in given if isinstance(t, Tensor) and t.requires_grad]
    if not checked:
        raise ArgumentError("gradcheck: no input requires a gradient", fix="Pass tensors with requires_grad=True.")
    for t in checked:
        if t.dtype is not float64:
            raise ArgumentError(f"gradcheck: means little below float64, an input is {t.dtype}", fix="Use .double().")
    with enable_grad():
        outs = _outputs(func, given)
        for which, out in enumerate(outs):
            if not out.requires_grad:
                continue
            for position, x in enumerate(checked):
                analytic = _analytic(out, x)
                numeric = _numeric(func, given, x, which, eps).reshape(analytic.shape)
                if not np.allclose(analytic, numeric, rtol=rtol, atol=atol, equal_nan=True):
                    if not raise_exception:
                        return False
                    gap = float(np.abs(analytic - numeric).max())
                    raise GradcheckError(
                        f"gradcheck: the gradient of output {which} by input {position} is off by up to {gap:.3g}\n"
                        f"numerical: {numeric}\nanalytical: {analytic}"
                    )
    return True


def gradgradcheck(func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, **options: Any) -> bool:
    """The same for second derivatives: the gradient of `func` is checked with `gradcheck`."""
    given: tuple[Any, ...] = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    with enable_grad():
        outs = [o for o in _outputs(func, given) if o.requires_grad]
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        seeds = [on_device_of(o, np.asarray(rng.normal(size=o._array.shape))) for o in outs]
    else:
        seeds = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    for s in seeds:
        s.requires_grad_()
    count = len(given)

    def first(*args: Any) -> Any:
        live = [a for a in args[:count] if isinstance(a, Tensor) and a.requires_grad]
        made = [o for o in _outputs(func, args[:count]) if o.requires_grad]
        found = grad(made, live, list(args[count:]), create_graph=True, allow_unused=True, materialize_grads=True)
        return tuple(found)

    return gradcheck(first, (*given, *seeds), **options)
