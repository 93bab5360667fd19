"""`wf.utils.hooks`: what takes a hook away again, under the name that PyTorch has for it."""

from wayfare.core.node import Handle as RemovableHandle

__all__ = ["RemovableHandle"]
