"""The op records, by family. Importing this package fills the registry."""

from wayfare.ops import (
    advanced,
    arithmetic,
    index,
    matmul,
    random,
    reduce,
    scatter,
    shape,
    transcendental,
)

__all__ = [
    "advanced",
    "arithmetic",
    "index",
    "matmul",
    "random",
    "reduce",
    "scatter",
    "shape",
    "transcendental",
]
