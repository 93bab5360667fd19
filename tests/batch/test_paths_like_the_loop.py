"""Recorded paths at the first map of every function, for as many examples as can be: scenarios and random programs of
the other tests still do what the loop does."""

import os

import pytest

from tests.batch.program_writer import write
from tests.batch.programs import difference
from tests.batch.scenarios.collected import ALL, known
from tests.batch.scenarios.harness import check
from wayfare.batch import frontend
from wayfare.batch.paths import choose, functions, recorded

COUNT = int(os.environ.get("WAYFARE_PROGRAMS", "200"))
TOGETHER = 50


@pytest.fixture(autouse=True)
def at_once(always_batched, monkeypatch):
    """Paths are recorded and used in the first map, by two examples already, however dear that is; and blocks are
    planned at once."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 0)
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 0)
    for module in (choose, recorded):
        monkeypatch.setattr(module, "LEAST", 2)
    monkeypatch.setattr(recorded, "_RECORDED", 6)

    def paths_for(profile, examples):
        # Whether an example must run alone first, to show what it changes, is not known yet.
        analysis = profile.analysis_of(examples[0].function)
        before, analysis.tried = analysis.tried, True
        try:
            return choose.paths_for(profile, examples)
        finally:
            analysis.tried = before

    monkeypatch.setattr(frontend, "paths_for", paths_for)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [name for name, way in ALL if way == "agenda" and not known(name, way)])
def test_a_scenario(name):
    found = check(name, "agenda")
    if found is not None:
        pytest.fail(found, pytrace=False)


@pytest.mark.parametrize("leaving", [False, True], ids=["only computing", "leaving something behind"])
@pytest.mark.parametrize("first", range(0, COUNT, TOGETHER))
def test_random_programs(first, leaving):
    for seed in range(first, min(first + TOGETHER, COUNT)):
        program = write(seed, leaving)
        found = difference(program)
        assert found is None, f"seed {seed}: {found}\n\n{program}"
