"""Measuring a user's own code: what a step costs, run in every way there is."""

from wayfare.profile.comparison import Comparison, Row, compare

__all__ = ["Comparison", "Row", "compare"]
