"""What tests of shortcuts count."""

import pytest

import wayfare as wf
from wayfare.compiler.costs import Budget, Ledger
from wayfare.compiler.function import Compiled
from wayfare.compiler.replay.fast_path import MISS


@pytest.fixture
def taken(monkeypatch):
    """How many calls shortcuts have answered, in a list of one number."""
    count = [0]
    shortly = Compiled._shortly

    def counting(self, args, mode):
        made = shortly(self, args, mode)
        count[0] += made is not MISS
        return made

    monkeypatch.setattr(Compiled, "_shortly", counting)
    return count


@pytest.fixture
def unchecked(monkeypatch):
    """Replays are not compared with Python and may take any time, and so may recordings: it can be counted who ran."""
    monkeypatch.setitem(wf.compile.__kwdefaults__, "check", False)
    monkeypatch.setattr(Budget, "allows", lambda self: True)
    monkeypatch.setattr(Ledger, "loses", lambda self: None)
