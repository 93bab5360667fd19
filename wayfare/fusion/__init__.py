"""Fusion: pure functions of arrays become a few native loops."""

from wayfare.fusion.composite import Composite, composite
from wayfare.fusion.program import Program

__all__ = ["Composite", "Program", "composite"]
