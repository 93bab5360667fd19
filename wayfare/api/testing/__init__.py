"""Checks that users of the framework need too: `gradcheck`, `gradgradcheck`, `assert_close`."""

from wayfare.api.testing.compare import assert_close
from wayfare.autograd.gradcheck import gradcheck, gradgradcheck

__all__ = ["assert_close", "gradcheck", "gradgradcheck"]
