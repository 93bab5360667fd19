"""The suite `loops`: every pattern computes the same by a map and by a loop. No clock is judged."""

from __future__ import annotations

import numpy as np
import pytest

import wayfare as wf
from benchmarks import loops as suite
from benchmarks.harness import Options
from benchmarks.works.map_patterns import MAPS, measure


def results(name, run):
    wf.manual_seed(0)
    f, xs = MAPS[name](wf)
    # Weights that are drawn inside are other ones: each example has random numbers of its own.
    return [float(value) for value in run(f, xs[:6] if name.startswith("1") else xs)]


@pytest.mark.filterwarnings("ignore:map")
@pytest.mark.parametrize("name", [name for name in MAPS if name != "a Linear of its own"])
def test_a_map_computes_the_same(name):
    want = results(name, lambda f, xs: [f(x) for x in xs])
    for batch in (True, None):
        found = results(name, lambda f, xs, batch=batch: wf.map(f, xs, batch=batch))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:map")
def test_a_pattern_is_measured():
    found = measure(wf, "a mask", rounds=2, warm=2, seconds=0.0)
    assert len(found["loop"]) == len(found["map"]) == 2
    assert all(seconds > 0 for seconds in (*found["loop"], *found["map"], found["early"]))


def test_the_suite_prints_its_tables(capsys, monkeypatch):
    monkeypatch.setattr(suite, "COUNTS", (2,))
    monkeypatch.setattr(suite, "SMALLER", {"hidden": 8})
    monkeypatch.setattr(suite, "ROWS", [row for row in suite.ROWS if row.name == "halting"])
    monkeypatch.setattr(suite, "MAPS", {"two examples": MAPS["two examples"]})
    report = suite.run(Options(quick=True, threads=1, only="2 examples", subject="wayfare", peer="", busy=0))
    assert [row.work for row in report.measurements] == ["adaptive computation, halts itself, 2 examples"]
    report = suite.run(Options(quick=True, threads=1, only="two examples", subject="wayfare", peer="", busy=0))
    assert [row.work for row in report.measurements] == ["two examples"]
    shown = capsys.readouterr().out
    assert "Maps over loops" in shown and "Works of the suite" in shown
