"""Losses of regression and of distributions. Those made of several steps are fused: one loop each way."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.autocast import follows_autocast
from wayfare.api.functions._along import check_floating, check_tensor, check_tensors
from wayfare.api.functions._public import as_dtype_of, common_dtype
from wayfare.api.functions.elementwise import where
from wayfare.api.fused import fused
from wayfare.core.autocast import FLOAT32, FLOAT32_ON_CPU
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError, OperationError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import broadcast
from wayfare.core.tensor import Tensor
from wayfare.nn.functional._reduction import read_reduction, reduced, warn_of_broadcasting

__all__ = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
]  # fmt: skip


# -- regression ---------------------------------------------------------------------------------------------------


def _check(name: str, input: Tensor, target: Tensor) -> None:
    check_tensors(name, input, target)
    warn_of_broadcasting(name, input, target)


def _averaged(losses: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """Weighted losses; the mean divides by the sum of the weights."""
    losses = losses * weight
    return losses.sum() / weight.expand(losses.shape).sum() if reduction == "mean" else reduced(losses, reduction)


@follows_autocast(FLOAT32)
def mse_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The squared error, averaged by default."""
    reduction = read_reduction("mse_loss", reduction, size_average, reduce)
    _check("mse_loss", input, target)
    dtype = common_dtype("mse_loss", (input, target))
    input, target = as_dtype_of(input, dtype), as_dtype_of(target, dtype)
    check_floating("mse_loss", input)
    if input.shape != target.shape:
        shape = broadcast("mse_loss", tuple(input.shape), tuple(target.shape))
        input, target = input.expand(shape), target.expand(shape)
    if weight is None:
        return apply(REGISTRY["mse_loss"], (input, target), {"reduction": reduction})  # type: ignore[no-any-return]
    return _averaged(apply(REGISTRY["mse_loss"], (input, target), {"reduction": "none"}), weight, reduction)


@follows_autocast(FLOAT32)
def l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The absolute error, averaged by default."""
    reduction = read_reduction("l1_loss", reduction, size_average, reduce)
    _check("l1_loss", input, target)
    if weight is None:
        return _l1_loss(input, target, reduction)  # type: ignore[no-any-return]
    return _averaged((input - target).abs(), weight, reduction)


@fused
def _l1_loss(input: Tensor, target: Tensor, reduction: str) -> Tensor:
    return reduced((input - target).abs(), reduction)


@follows_autocast(FLOAT32)
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """The error, squared over `2 beta` where it is below `beta`, else absolute less `beta / 2`."""
    reduction = read_reduction("smooth_l1_loss", reduction, size_average, reduce)
    if beta < 0:
        raise OperationError(f"smooth_l1_loss: beta must not be negative, it is {beta}")
    _check("smooth_l1_loss", input, target)
    if beta == 0:
        return _l1_loss(input, target, reduction)  # type: ignore[no-any-return]
    return _smooth_l1_loss(input, target, float(beta), reduction)  # type: ignore[no-any-return]


@fused
def _smooth_l1_loss(input: Tensor, target: Tensor, beta: float, reduction: str) -> Tensor:
    error = input - target
    size = error.abs()
    return reduced(where(size < beta, error * error * (0.5 / beta), size - 0.5 * beta), reduction)


@follows_autocast(FLOAT32_ON_CPU)
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Half the squared error where it is below `delta`, else `delta` times the absolute less `delta / 2`."""
    reduction = read_reduction("huber_loss", reduction)
    if delta <= 0:
        raise OperationError(f"huber_loss: delta must be positive, it is {delta}")
    _check("huber_loss", input, target)
    if weight is None:
        return _huber_loss(input, target, float(delta), reduction)  # type: ignore[no-any-return]
    return _averaged(_huber_loss(input, target, float(delta), "none"), weight, reduction)


@fused
def _huber_loss(input: Tensor, target: Tensor, delta: float, reduction: str) -> Tensor:
    error = input - target
    size = error.abs()
    return reduced(where(size <= delta, error * error * 0.5, (size - 0.5 * delta) * delta), reduction)


# -- distributions ------------------------------------------------------------------------------------------------


@follows_autocast(FLOAT32)
def kl_div(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:  # fmt: skip
    """The Kullback-Leibler divergence of log-probabilities `input` from probabilities `target`."""
    by_batch = reduction == "batchmean"
    reduction = "sum" if by_batch else read_reduction("kl_div", reduction, size_average, reduce)
    check_tensors("kl_div", input, target)
    out = _kl_div(input, target, bool(log_target), reduction)
    return out / input.shape[0] if by_batch and input.ndim else out  # type: ignore[no-any-return]


@fused
def _kl_div(input: Tensor, target: Tensor, log_target: bool, reduction: str) -> Tensor:
    losses = target.exp() * (target - input) if log_target else target.xlogy(target) - target * input
    return reduced(losses, reduction)


@follows_autocast(FLOAT32)
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: Any = None,
    eps: float = 1e-8, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative log likelihood of counts under Poisson distributions with (log) means `input`."""
    reduction = read_reduction("poisson_nll_loss", reduction, size_average, reduce)
    check_tensors("poisson_nll_loss", input, target)
    return _poisson_nll_loss(input, target, bool(log_input), bool(full), float(eps), reduction)  # type: ignore[no-any-return]


@fused
def _poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: str
) -> Tensor:
    losses = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        # Stirling's formula for log(target!)
        stirling = target * target.log() - target + (target * (2 * math.pi)).log() * 0.5
        losses = losses + where(target > 1, stirling, 0.0)
    return reduced(losses, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """The negative log likelihood of `target` under normal distributions of mean `input` and variance `var`."""
    reduction = read_reduction("gaussian_nll_loss", reduction)
    check_tensor("gaussian_nll_loss", input)
    check_floating("gaussian_nll_loss", input)
    if isinstance(var, Tensor):
        _check_variance_shape(input, var)
        if var.shape != input.shape and tuple(var.shape) == tuple(input.shape[:-1]):
            var = var.unsqueeze(-1)
    else:
        if var < 0:
            raise ArgumentError(f"gaussian_nll_loss: var must not be negative, it is {var}")
        var = input.detach() * 0 + var
    if not var.dtype.is_floating_point:
        var = as_dtype_of(var, input.dtype)
    floored = apply(REGISTRY["floored_variance"], (var,), {"eps": float(eps)})
    return _gaussian_nll_loss(input, target, floored, bool(full), reduction)  # type: ignore[no-any-return]


@fused
def _gaussian_nll_loss(input: Tensor, target: Tensor, floored: Tensor, full: bool, reduction: str) -> Tensor:
    losses = (floored.log() + (input - target) ** 2 / floored) * 0.5
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return reduced(losses, reduction)


def _check_variance_shape(input: Tensor, var: Tensor) -> None:
    shape, own = tuple(input.shape), tuple(var.shape)
    if own != shape and own != shape[:-1] and own != (*shape[:-1], 1):
        broadcasts = len(own) == len(shape) and all(v in (1, s) for v, s in zip(own, shape, strict=True))
        if not broadcasts:
            raise ArgumentError(f"gaussian_nll_loss: var of {var.spec} does not fit an input of {input.spec}")
