"""What the tests of `wf.map` have in common."""

import pytest

import wayfare as wf
from wayfare.batch.paths import choose
from wayfare.batch.run import row_plan


@pytest.fixture(autouse=True)
def always_batched(monkeypatch):
    """Every map is batched in a session, whether it pays or not, and in the first map as in the tenth: these tests are
    about what comes out. (tests/batch/test_paths.py and test_paths_like_the_loop.py are about recorded paths.)"""
    monkeypatch.setitem(wf.map.__kwdefaults__, "batch", True)
    monkeypatch.setattr(choose, "FIRST_MAPS", 10**9)
    # Groups run natively at once, not only those of functions that ran in several groups before.
    monkeypatch.setattr(row_plan, "AFTER_GROUPS", 0)
