"""TensorBoard event files, under PyTorch's name: `SummaryWriter`. Neither TensorBoard nor protobuf is needed."""

from wayfare.see.tensorboard.writer import SummaryWriter

__all__ = ["SummaryWriter"]
