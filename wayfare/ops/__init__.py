"""The op records: a folder for each family, with the ONNX rules beside the records.

Importing this package fills the registry.
"""
# ruff: noqa: F401

from wayfare.ops.contraction import attention, attention_in_tiles, cross, einsum, matmul, ragged_attention
from wayfare.ops.elementwise import activation, arithmetic, bitwise, polynomials, rounding, special, transcendental
from wayfare.ops.indexing import advanced, classes, scatter, search, segments
from wayfare.ops.linalg import decompositions, lu, matrix_function, solve, svd
from wayfare.ops.movement import device, index, join, layout, shape, windows
from wayfare.ops.normalization import loss, norm, scaled_norm
from wayfare.ops.random import draws, dropout
from wayfare.ops.recurrent import layers
from wayfare.ops.reduction import extreme, norms, reduce, scan, softmax, sort
from wayfare.ops.window import conv, fold, fractional, pool, resample

from wayfare.ops import cuda  # isort: skip - it says how the records above run on CUDA
