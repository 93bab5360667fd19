"""Measuring a user's own code: what a block spends (`wf.profile()`), and a step run in every way (`compare`)."""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from wayfare.core.errors import ArgumentTypeError as _ArgumentTypeError
from wayfare.see.profile.block import Profile
from wayfare.see.profile.comparison import Comparison, Row, compare
from wayfare.see.profile.costs import Cost
from wayfare.see.profile.ranks import RankTraces, merge

__all__ = ["Comparison", "Cost", "Profile", "RankTraces", "Row", "compare", "merge"]


class _Callable(_ModuleType):
    """A module that can be called: `wf.profile()` is a Profile."""

    def __call__(self, *args: _Any, **options: _Any) -> Profile:
        if args:
            raise _ArgumentTypeError(f"profile: does not take a {type(args[0]).__name__}",
                                     fix="Write `with wf.profile() as p:` around the code to measure.")  # fmt: skip
        return Profile(**options)


_sys.modules[__name__].__class__ = _Callable
