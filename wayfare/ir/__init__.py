"""The graph of a computation, its gradient, passes, fusion into native loops, and plans."""

from wayfare.ir.fuse.composite import Composite, composite
from wayfare.ir.fuse.program import Program

__all__ = ["Composite", "Program", "composite"]
