"""Linear layers: Identity, Linear and Bilinear."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.functions.creation import empty
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.linear import bilinear, linear
from wayfare.nn.init import kaiming_uniform_, uniform_
from wayfare.nn.module import Module
from wayfare.nn.one_call import one_call_of_any_rank
from wayfare.nn.parameter import Parameter

__all__ = ["Identity", "Linear", "Bilinear"]


class Identity(Module):
    """Returns its input; any arguments of the constructor are ignored. A placeholder."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """The input itself."""
        return input


class Linear(Module):
    """`x @ weight.T + bias`: (…, in_features) to (…, out_features).

    `weight` is (out_features, in_features). Both start uniform within ±1/√in_features.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.bias: Parameter | None
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new weight and bias."""
        kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            uniform_(self.bias, -bound, bound)

    @one_call_of_any_rank()
    def forward(self, input: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        return linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, and whether there is a bias."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """`x1 @ weight[o] @ x2 + bias[o]`: (…, in1_features) and (…, in2_features) to (…, out_features).

    `weight` is (out_features, in1_features, in2_features). Both start uniform within ±1/√in1_features.
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"Bilinear: in1_features must be positive, it is {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.bias: Parameter | None
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw a new weight and bias."""
        bound = 1 / math.sqrt(self.in1_features)
        uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """(…, in1_features) and (…, in2_features) to (…, out_features)."""
        return bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, and whether there is a bias."""
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
