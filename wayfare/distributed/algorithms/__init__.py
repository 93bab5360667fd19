"""Ways of training together that are more than one call: `Join`, for ranks with different amounts of data."""

from wayfare.distributed.algorithms.join import Join, Joinable

__all__ = ["Join", "Joinable"]
