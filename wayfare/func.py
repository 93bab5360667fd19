"""`wf.func`: functions of functions, as in `torch.func`."""

from __future__ import annotations

from wayfare.autograd.transforms import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]
