"""`wf.nn.init`: first values for parameters. Every function writes into the tensor it is given, without recording."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from wayfare.api.functions.creation import empty
from wayfare.api.functions.decompose import qr
from wayfare.api.functions.grids import arange, eye
from wayfare.api.functions.shape import diagonal
from wayfare.api.special import ndtri
from wayfare.autograd.modes import no_grad
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.generator import Generator
from wayfare.core.missing_names import no_such_name
from wayfare.core.spec import float32, float64
from wayfare.core.tensor import Tensor

__all__ = [
    "calculate_gain", "uniform_", "normal_", "trunc_normal_", "constant_", "ones_", "zeros_", "eye_", "dirac_",
    "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_",
]  # fmt: skip

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4,
}  # fmt: skip


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{name}: takes a Tensor, not {type(tensor).__name__}")


def _check_dims(name: str, tensor: Any, dims: tuple[int, ...]) -> None:
    _check(name, tensor)
    if tensor.ndim not in dims:
        wanted = " or ".join(str(d) for d in dims)
        raise ArgumentError(f"{name}: takes a tensor of {wanted} dimensions, this is {tensor.spec}")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much to scale weights in front of a nonlinearity; `param` is the negative slope of `"leaky_relu"`."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ArgumentError(f"calculate_gain: the negative slope must be a number, it is {param!r}")
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join(sorted([*_GAINS, "leaky_relu"]))
        raise ArgumentError(f"calculate_gain: nonlinearity {nonlinearity!r} is not known", fix=f"Known are {known}.")
    return _GAINS[nonlinearity]


# -- plain distributions and constants -----------------------------------------------------------------------


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly from [a, b)."""
    _check("uniform_", tensor)
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """From the normal distribution."""
    _check("normal_", tensor)
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """From the part of the normal distribution that lies between `a` and `b` (values, not deviations)."""
    _check("trunc_normal_", tensor)
    if not std > 0 or not a <= b:
        raise ArgumentError(f"trunc_normal_: needs std above 0 and a not above b, they are {std}, {a} and {b}")
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(f"trunc_normal_: the mean {mean} is more than 2 deviations from [{a}, {b}], so nearly all values "
                      "lie at its near end", stacklevel=2)  # fmt: skip
    low, high = (a - mean) / std, (b - mean) / std
    # Above the middle the probabilities are too close to 1 to distinguish: use the mirror image there.
    sign = -1.0 if low + high > 0 else 1.0
    low, high = sorted((sign * low, sign * high))
    with no_grad():
        chances = empty(tensor.shape, dtype=float64)
        chances.uniform_(_probability_below(low), _probability_below(high), generator=generator)
        values = ndtri(chances).mul_(sign * std).add_(mean)
        return tensor.copy_(values).clamp_(a, b)


def _probability_below(x: float) -> float:
    """The share of the standard normal distribution below `x`, right to the last digit in the lower tail."""
    return math.erfc(-x / math.sqrt(2)) / 2


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every element `val`."""
    _check("constant_", tensor)
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Every element 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Every element 0."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """A matrix with ones on its diagonal and zeros elsewhere."""
    _check_dims("eye_", tensor, (2,))
    with no_grad():
        return tensor.copy_(eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Convolution weights [out, in, …] that pass the channels of their input on unchanged, within each group."""
    _check_dims("dirac_", tensor, (3, 4, 5))
    channels = tensor.shape[0]
    if groups < 1 or channels % groups:
        raise ArgumentError(f"dirac_: {channels} output channels cannot be divided into {groups} groups")
    per_group = channels // groups
    kept = min(per_group, tensor.shape[1])
    with no_grad():
        tensor.zero_()
        places = arange(groups)[:, None] * per_group + arange(kept)
        centre = tuple(size // 2 for size in tensor.shape[2:])
        tensor[(places, arange(kept).expand(groups, kept), *centre)] = 1
    return tensor


# -- scaled by the number of connections ---------------------------------------------------------------------


def _fans(name: str, tensor: Any) -> tuple[int, int]:
    """How many inputs one output sees, and how many outputs one input feeds."""
    _check(name, tensor)
    if tensor.ndim < 2:
        raise ArgumentError(f"{name}: fan in and fan out need a tensor of at least 2 dimensions, this is {tensor.spec}")
    window = math.prod(tensor.shape[2:])
    return tensor.shape[1] * window, tensor.shape[0] * window


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """`_fans` under the name that programs take from PyTorch, though it is private there."""
    return _fans("_calculate_fan_in_and_fan_out", tensor)


def _xavier_std(name: str, tensor: Tensor, gain: float) -> float:
    return gain * math.sqrt(2 / max(sum(_fans(name, tensor)), 1))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly from ±gain·√(6 / (fan_in + fan_out)): keeps the size of values and gradients through linear layers."""
    bound = math.sqrt(3) * _xavier_std("xavier_uniform_", tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with the deviation gain·√(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, _xavier_std("xavier_normal_", tensor, gain), generator)


def _kaiming_std(name: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float | None:
    """The deviation; None for a tensor without elements, which is left alone."""
    _check(name, tensor)
    if tensor.numel() == 0:
        warnings.warn(f"{name}: the tensor has no elements, so there is nothing to do", stacklevel=3)
        return None
    chosen = mode.lower() if isinstance(mode, str) else mode
    if chosen not in ("fan_in", "fan_out"):
        raise ArgumentError(f"{name}: mode must be 'fan_in' or 'fan_out', it is {mode!r}")
    fan_in, fan_out = _fans(name, tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if chosen == "fan_in" else fan_out)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Evenly from ±gain·√(3 / fan): keeps the size of values (`fan_in`) or gradients (`fan_out`) through ReLUs.

    `a` is the negative slope of the nonlinearity behind, if that is `"leaky_relu"`.
    """
    std = _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return tensor if std is None else uniform_(tensor, -math.sqrt(3) * std, math.sqrt(3) * std, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal with the deviation gain/√fan; the arguments are those of `kaiming_uniform_`."""
    std = _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0.0, std, generator)


# -- matrices of a kind --------------------------------------------------------------------------------------


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """A random matrix with orthonormal rows or columns, the fewer of the two, times `gain`.

    Of a tensor with more dimensions, the first is the rows and all others together the columns.
    """
    _check("orthogonal_", tensor)
    if tensor.ndim < 2:
        raise ArgumentError(f"orthogonal_: takes a tensor of at least 2 dimensions, this is {tensor.spec}")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    dtype = tensor.dtype if tensor.dtype.itemsize >= 4 else float32
    with no_grad():
        tall = empty((max(rows, columns), min(rows, columns)), dtype=dtype).normal_(generator=generator)
        q, r = qr(tall)
        # Signs that do not depend on how QR was computed make every orthogonal matrix equally likely.
        signs = (diagonal(r) >= 0).to(dtype).mul_(2).sub_(1)
        q = q * (signs * gain)
        return tensor.copy_((q if rows >= columns else q.t()).reshape(tensor.shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """A matrix of normal values in which each column has the share `sparsity` of its elements, at random, zero."""
    _check_dims("sparse_", tensor, (2,))
    if not 0 <= sparsity <= 1:
        raise ArgumentError(f"sparse_: sparsity must lie between 0 and 1, it is {sparsity}")
    with no_grad():
        tensor.normal_(0, std, generator=generator)
        order = empty(tensor.shape).uniform_(generator=generator).argsort(0)
        return tensor.scatter_(0, order[: math.ceil(sparsity * tensor.shape[0])], 0)


# PyTorch's older names for the same, which it warns of: without the underscore they hide that the tensor is written.
_OLD_NAMES = (
    "uniform", "normal", "constant", "eye", "dirac", "xavier_uniform", "xavier_normal", "kaiming_uniform",
    "kaiming_normal", "orthogonal", "sparse",
)  # fmt: skip


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> Any:
        if name not in _OLD_NAMES:
            raise no_such_name(__name__, name)
        warnings.warn(f"nn.init.{name} is the old name of nn.init.{name}_", FutureWarning, stacklevel=2)
        return globals()[name + "_"]
