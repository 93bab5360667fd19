"""Checks that users of the framework need too: `gradcheck`, `gradgradcheck`, `assert_close`."""

from wayfare.autograd.gradcheck import gradcheck, gradgradcheck
from wayfare.testing.compare import assert_close

__all__ = ["assert_close", "gradcheck", "gradgradcheck"]
