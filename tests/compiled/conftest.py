"""What tests of shortcuts count."""

import pytest

from wayfare.compiled.function import Compiled
from wayfare.compiled.shortcut import MISS


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
