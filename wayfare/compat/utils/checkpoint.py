"""`wf.utils.checkpoint.checkpoint`, as in PyTorch."""

from wayfare.autograd.checkpoint import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
