"""`wf.utils.tensorboard`: `SummaryWriter`, under the name that PyTorch has for it."""

from wayfare.see.tensorboard import SummaryWriter

__all__ = ["SummaryWriter"]
