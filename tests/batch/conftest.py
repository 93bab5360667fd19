"""What the tests of `wf.map` have in common."""

import pytest

import wayfare as wf


@pytest.fixture(autouse=True)
def always_batched(monkeypatch):
    """Every map is batched, whether it pays or not: these tests are about what comes out."""
    monkeypatch.setitem(wf.map.__kwdefaults__, "batch", True)
