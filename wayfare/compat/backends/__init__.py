"""`wf.backends`: the switches that PyTorch scripts set at their start. `cuda.matmul.allow_tf32` decides something; the
others may be set, and change nothing.
"""

from wayfare.compat.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
