"""Helpers under the names PyTorch has them: `wf.utils.checkpoint`."""

from wayfare.utils import checkpoint

__all__ = ["checkpoint"]
