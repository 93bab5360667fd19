"""Ragged tensors: rows of different lengths without padding."""

from wayfare.ragged.ragged import Ragged

__all__ = ["Ragged"]
