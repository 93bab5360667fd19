"""The suite `busy`: both sides compute the same, and its tables appear. No clock is judged."""

import numpy as np
import pytest

import wayfare as wf
from benchmarks import busy as suite
from benchmarks.harness import Options
from benchmarks.works import products


def test_both_sides_compute_the_same_product():
    torch = pytest.importorskip("torch")
    mine, theirs = (products.square(m, 40) for m in (wf, torch))
    mine.step()
    theirs.step()
    np.testing.assert_allclose(mine.results()[0], theirs.results()[0], 1e-4, 1e-4)


def test_the_suite_prints_its_tables(capsys, monkeypatch, one_round):
    monkeypatch.setattr(suite, "NEIGHBOURS", (0, 1))
    monkeypatch.setattr(suite, "ROUND_SECONDS", 0.0)
    rows = [suite.Row("product", "a product", "products.square", {"size": 8}), suite.Row("none", "nothing", "no.thing")]
    monkeypatch.setattr(suite, "ROWS", rows)
    report = suite.run(Options(quick=True, threads=1, subject="wayfare", peer="", busy=0))
    out = capsys.readouterr().out
    assert [row.work for row in report.measurements] == [
        "a product, 0 neighbours, over alone", "a product, 1 neighbours, over alone"
    ]
    assert "over alone" in out and "not measured: nothing" in out
