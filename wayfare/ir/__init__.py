"""Fusion: pure functions of arrays become a few native loops."""

from wayfare.ir.fuse.composite import Composite, composite
from wayfare.ir.fuse.program import Program

__all__ = ["Composite", "Program", "composite"]
