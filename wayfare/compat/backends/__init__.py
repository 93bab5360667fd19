"""`wf.backends`: the switches of libraries that PyTorch scripts set at their start; here they switch nothing.

The machinery that computes is `wayfare.codegen`.
"""

from wayfare.compat.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
