"""Distances and similarities of vectors."""

from __future__ import annotations

from wayfare.api.functions.distance import cosine_similarity, pairwise_distance, pdist
from wayfare.api.functions.matrix_norms import vector_norm
from wayfare.core.tensor import Tensor

__all__ = ["pairwise_distance", "cosine_similarity", "pdist", "normalize"]


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Vectors along `dim` divided by their p-norm (or by `eps` where that is smaller)."""
    length = vector_norm(input, p, dim, True).clamp_min(eps)
    return input / length
