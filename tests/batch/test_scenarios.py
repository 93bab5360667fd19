"""`wf.map` against the loop in small programs of many people: every scenario by every way that makes sense for it."""

import pytest

from tests.batch.scenarios.collected import ALL, SCENARIOS, known
from tests.batch.scenarios.harness import check
from tests.batch.scenarios.known import KNOWN


def parameters():
    """Scenario × way; those known to differ must differ."""
    for name, way in ALL:
        words = known(name, way)
        marks = pytest.mark.xfail(reason=words, strict=True) if words else ()
        yield pytest.param(name, way, marks=marks, id=f"{name}-{way}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "way"), list(parameters()))
def test_like_the_loop(name, way):
    found = check(name, way)
    if found is not None:
        pytest.fail(found, pytrace=False)


def test_there_are_many():
    assert len(SCENARIOS) >= 900
    assert set(KNOWN) <= set(SCENARIOS)
