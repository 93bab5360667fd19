"""What tests of fast paths count."""

import pytest

import wayfare as wf
from wayfare.compiler.costs import Budget, Timings
from wayfare.compiler.function import Compiled
from wayfare.compiler.replay.fast_path import MISS


@pytest.fixture
def taken(monkeypatch):
    """How many calls fast paths have answered, in a list of one number."""
    count = [0]
    fast = Compiled._try_fast_paths

    def counting(self, args, options, mode):
        made = fast(self, args, options, mode)
        count[0] += made is not MISS
        return made

    monkeypatch.setattr(Compiled, "_try_fast_paths", counting)
    return count


@pytest.fixture
def unchecked(monkeypatch):
    """Replays are not compared with Python and may take any time, and so may recordings: it can be counted who ran."""
    monkeypatch.setitem(wf.compile.__kwdefaults__, "check", False)
    monkeypatch.setattr(Budget, "allows", lambda self: True)
    monkeypatch.setattr(Timings, "loses", lambda self: None)
