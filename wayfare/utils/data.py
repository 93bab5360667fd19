"""`wf.utils.data`: `wf.data` under the name that PyTorch has for it."""

from wayfare.data import *  # noqa: F403
