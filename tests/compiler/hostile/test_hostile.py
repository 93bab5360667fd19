"""Compiled functions against their eager twins, in worlds that change between calls."""

import pytest

from tests.compiler.hostile.collected import ALL
from tests.compiler.hostile.harness import run

CHECKED = [name for number, name in enumerate(ALL) if number % 10 == 0]


@pytest.mark.parametrize("name", ALL)
def test_like_plain(name):
    """Without the check of itself, which could hide a plan that is wrong."""
    run(name, check=False)


@pytest.mark.parametrize("name", CHECKED)
def test_like_plain_by_default(name):
    run(name)


def test_there_are_many():
    assert len(ALL) >= 500
