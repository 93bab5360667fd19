"""The graph of a computation, its gradient, passes, fusion into native loops, and plans."""

from wayfare.ir.fuse.composite import Composite, composite

__all__ = ["Composite", "composite"]
