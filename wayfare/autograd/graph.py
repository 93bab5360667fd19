"""`wf.autograd.graph`: the graph's own names, as in `torch.autograd.graph`."""

from wayfare.autograd.modes import saved_tensors_hooks
from wayfare.graph.node import Node

__all__ = ["Node", "saved_tensors_hooks"]
