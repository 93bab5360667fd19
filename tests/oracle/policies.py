"""The few entries the referee treats in their own way, each with the reason.

`TOLERANCES` loosens a comparison, `KNOWN_DIFFERENCES` excuses an entry that disagrees: both stay small.
"""

from __future__ import annotations

from typing import Any

from tests.oracle.compare import Tolerance

# Draws of two generators never agree: shape, dtype and distribution are compared instead.
_RANDOM = frozenset(
    {
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "normal.in_place",
        "uniform",
        "randn",
        "randn_like",
        "rand_like",
        "randint",
        "randint_like",
        "normal",
        "normal.number_mean",
        "bernoulli",
        "multinomial",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.alpha_dropout",
        "nn.functional.feature_alpha_dropout.with_train",
        "nn.functional.rrelu",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward",
    }
)

# The values are whatever the memory held: shape and dtype are compared.
UNDEFINED_VALUES = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"}
)

# Vectors fixed only up to sign (or up to a rotation): compared after the database's own normalisation.
FIXED_UP_TO_SIGN = frozenset({"svd", "linalg.svd", "linalg.eigh", "svd_lowrank", "pca_lowrank"})

# entry -> dtype name -> (tolerance, reason)
_INEXACT_BESSEL = (Tolerance(1e-7, 1e-6), "PyTorch is off by up to 3e-7, as arbitrary precision shows")
TOLERANCES: dict[str, dict[str, tuple[Tolerance, str]]] = {
    "cov": {
        "float32": (
            Tolerance(1e-4, 3e-4),
            "its gradient is a difference of large terms that cancel; PyTorch's own tests allow as much",
        )
    },
    "nn.functional.rms_norm": {
        "bfloat16": (
            Tolerance(1.6e-2, 1e-3),
            "the gradient of one number is what remains when its terms cancel; the scale is kept in bfloat16 here",
        )
    },
    "nn.functional.scaled_dot_product_attention": {
        "float32": (
            Tolerance(1e-5, 1e-4),
            "its samples have scores near a hundred, whose own rounding in float32 the weights show; by PyTorch's "
            "float64 results ours are the nearer ones as a rule",
        )
    },
    "special.bessel_j0": {"float64": _INEXACT_BESSEL},
    "special.bessel_y1": {"float64": _INEXACT_BESSEL},
    "special.hermite_polynomial_he": {
        "float32": (Tolerance(1e-5, 1e-4), "two recurrences in float32 that lose digits by cancellation, each its own")
    },
}

_OPTIONS = "its samples carry PyTorch's own options for cutting up the work"

# entry -> reason. An entry here may fail, and does not count as agreeing.
KNOWN_DIFFERENCES: dict[str, str] = {
    "nn.functional.linear_cross_entropy.chunked": _OPTIONS,
    "nn.functional.linear_cross_entropy.chunked_none": _OPTIONS,
    "as_strided.partial_views": "reads memory outside the tensor it is given",
    "grid_sampler_3d": "a fifth of its samples have five million elements, too slow to check",
    "as_strided_scatter": "PyTorch gives overwritten elements a gradient, which its own gradcheck refutes",
}


def is_random(entry: str, kwargs: dict[str, Any]) -> bool:
    """Whether a sample with these keywords draws random numbers."""
    return entry in _RANDOM or kwargs.get("dropout_p", 0.0) > 0.0


def tolerance_for(entry: str, dtype_name: str) -> Tolerance | None:
    """The tolerance of an entry where it is not the default one."""
    override = TOLERANCES.get(entry, {}).get(dtype_name)
    return override[0] if override is not None else None
