"""Activations as modules: each keeps its settings and calls the function of the same meaning."""

from __future__ import annotations

import warnings
from typing import Any

import wayfare.nn.functional as F
from wayfare.api.functions.creation import empty
from wayfare.autograd.modes import no_grad
from wayfare.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter
from wayfare.nn.shown_options import shows

__all__ = [
    "Threshold", "ReLU", "RReLU", "Hardtanh", "ReLU6", "Sigmoid", "Hardsigmoid", "Tanh", "SiLU", "Mish", "Hardswish",
    "ELU", "CELU", "SELU", "GLU", "GELU", "Hardshrink", "LeakyReLU", "LogSigmoid", "Softplus", "Softshrink", "PReLU",
    "Softsign", "Tanhshrink", "Softmin", "Softmax", "Softmax2d", "LogSoftmax",
]  # fmt: skip


class _MayWriteInPlace(Module):
    """An activation that can write its result into its input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    extra_repr = shows("inplace")


# -- pieces of straight lines -------------------------------------------------------------------------------------


class Threshold(_MayWriteInPlace):
    """The element where it is above `threshold`, `value` elsewhere."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold = threshold
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.threshold(input, self.threshold, self.value, self.inplace)

    extra_repr = shows("threshold", "value", "inplace")


class ReLU(_MayWriteInPlace):
    """`max(x, 0)`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.relu(input, self.inplace)


class RReLU(_MayWriteInPlace):
    """`LeakyReLU` whose slope is drawn from [lower, upper] for each element in training, and their mean otherwise."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower = lower
        self.upper = upper

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    extra_repr = shows("lower", "upper", "inplace")


class Hardtanh(_MayWriteInPlace):
    """Each element brought into [min_val, max_val]."""

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False, min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inplace)
        if min_value is not None or max_value is not None:
            warnings.warn("Hardtanh: min_value and max_value are deprecated, use min_val and max_val",
                          FutureWarning, stacklevel=2)  # fmt: skip
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        if not self.max_val > self.min_val:
            raise ArgumentError(f"Hardtanh: max_val ({self.max_val}) must be greater than min_val ({self.min_val})")

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    extra_repr = shows("min_val", "max_val", "inplace")


class ReLU6(Hardtanh):
    """`min(max(x, 0), 6)`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    extra_repr = shows("inplace")


class LeakyReLU(_MayWriteInPlace):
    """The element where positive, `negative_slope` times it elsewhere."""

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    extra_repr = shows("negative_slope", "inplace")


class PReLU(Module):
    """`LeakyReLU` with a learnt slope: one for all, or one for each channel (dimension 1)."""

    weight: Parameter

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Every slope as at the start."""
        with no_grad():
            self.weight.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, …] with a slope for each channel, or any shape with a single one."""
        return F.prelu(input, self.weight)

    extra_repr = shows("num_parameters")


class Hardshrink(Module):
    """The element where it is further than `lambd` from 0, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """The limit."""
        return f"{self.lambd}"


class Softshrink(Module):
    """The element moved by `lambd` towards 0, and 0 where that would cross it."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        """The limit."""
        return f"{self.lambd}"


class Hardsigmoid(_MayWriteInPlace):
    """`min(max(x + 3, 0), 6) / 6`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.hardsigmoid(input, self.inplace)

    extra_repr = shows()


class Hardswish(_MayWriteInPlace):
    """`x * hardsigmoid(x)`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.hardswish(input, self.inplace)

    extra_repr = shows()


# -- smooth -------------------------------------------------------------------------------------------------------


class Sigmoid(Module):
    """`1 / (1 + exp(-x))`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.sigmoid(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.tanh(input)


class SiLU(_MayWriteInPlace):
    """`x * sigmoid(x)`, also called swish."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.silu(input, self.inplace)


class Mish(_MayWriteInPlace):
    """`x * tanh(softplus(x))`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.mish(input, self.inplace)


class ELU(_MayWriteInPlace):
    """The element where positive, `alpha * (exp(x) - 1)` elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.elu(input, self.alpha, self.inplace)

    extra_repr = shows("alpha", "inplace")


class CELU(_MayWriteInPlace):
    """The `ELU` that is smooth for every alpha: `alpha * (exp(x / alpha) - 1)` where negative."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.celu(input, self.alpha, self.inplace)

    extra_repr = shows("alpha", "inplace")


class SELU(_MayWriteInPlace):
    """The self-normalising `ELU`: mean 0 and deviation 1 stay through many layers."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.selu(input, self.inplace)


class GELU(Module):
    """`x` times the chance that a standard normal number is below it; `approximate="tanh"` for the usual shortcut."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.gelu(input, approximate=self.approximate)

    extra_repr = shows("approximate")


class LogSigmoid(Module):
    """`log(sigmoid(x))` without overflow."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.logsigmoid(input)


class Softplus(Module):
    """`log(1 + exp(beta x)) / beta`: a smooth `ReLU`. Where `beta x` is above `threshold`, the element itself."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.softplus(input, self.beta, self.threshold)

    extra_repr = shows("beta", "threshold")


class Softsign(Module):
    """`x / (1 + |x|)`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.softsign(input)


class Tanhshrink(Module):
    """`x - tanh(x)`."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element; any shape."""
        return F.tanhshrink(input)


# -- along a dimension --------------------------------------------------------------------------------------------


class _AlongDim(Module):
    """An activation of vectors along a dimension."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        if dim is not None and (isinstance(dim, bool) or not hasattr(dim, "__index__")):
            raise ArgumentTypeError(f"{type(self).__name__}: dim must be an int, not {dim!r}")
        self.dim = dim

    extra_repr = shows("dim")


class GLU(_AlongDim):
    """The first half along `dim` times the sigmoid of the second half."""

    dim: int

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim)

    def forward(self, input: Tensor) -> Tensor:
        """[…, 2 n, …] to […, n, …]."""
        return F.glu(input, self.dim)


class Softmin(_AlongDim):
    """`Softmax` of the negative: the smallest element gets the most."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.softmin(input, self.dim)


class Softmax(_AlongDim):
    """`exp(x) / sum(exp(x))` along `dim`: positive numbers that sum to one."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.softmax(input, self.dim)


class LogSoftmax(_AlongDim):
    """The logarithm of `Softmax`, computed without overflow."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        return F.log_softmax(input, self.dim)


class Softmax2d(Module):
    """`Softmax` over the channels at each place of an image, [N, C, H, W] or [C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        """The shape stays."""
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: needs images [N, C, H, W] or [C, H, W], not {input.spec}")
        return F.softmax(input, -3)
