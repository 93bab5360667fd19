"""Neural networks: the functions they are made of."""

from wayfare.nn import functional

__all__ = ["functional"]
