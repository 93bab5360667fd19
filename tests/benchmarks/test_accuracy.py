"""The suite `accuracy`: it sees errors where they are, both sides run every function, and the page can be written."""

import json

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import accuracy
from benchmarks.works import accuracy as works
from benchmarks.works.accuracy import CASES, Case, errors
from tools import make_accuracy_docs

SHAPE = (64, 128)


@pytest.mark.parametrize("name", CASES)
def test_every_function_is_measured_on_both_sides(name):
    sides = [wf]
    try:
        import torch

        sides.append(torch)
    except ImportError:
        pass
    for m in sides:
        forward, gradient = errors(m, name, "float32", 0.0, SHAPE, CASES[name].axes[0], True, False)
        assert forward < 100 and gradient < 100


def test_an_error_is_seen(monkeypatch):
    monkeypatch.setitem(CASES, "off", Case("sums", lambda m, x, d: x.sum(d) * (1 + 1e-5), CASES["sum"].exact))
    forward, gradient = errors(wf, "off", "float32", 1e2, SHAPE, "last", False, False)
    assert forward == pytest.approx(1e-5 / np.finfo(np.float32).eps, rel=0.02)
    assert gradient < 1  # it is 1e-5 off in float64 too, where nobody can see it


def test_float64_is_judged_by_extended_precision_only():
    assert errors(wf, "sum", "float64", 1e2, SHAPE, "all", False, False)[1] is None
    assert errors(wf, "cdist", "float64", 1e2, SHAPE, "all", False, False) == [None, None]


def test_what_is_too_far_off_is_told():
    def at(*pair):
        return {"0": {"forward": list(pair), "gradient": [None, None]}}

    found = {"float32": {"a": at(9.0, 1.0), "b": at(7.0, 0.1), "c": at(30.0, 10.0), "d": at(float("nan"), 1.0)}}
    assert [line.split(",")[0] for line in accuracy.too_far(found)] == ["float32: a", "float32: d"]


def test_the_suite_and_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accuracy, "OFFSETS", {"float32": (0, 1e2)})
    out = tmp_path / "figures.json"
    assert command.main(["accuracy", "--quick", "--only", "cumsum", "--peer", "", "--json", str(out)]) == 0
    assert "cumsum" in capsys.readouterr().out
    found = json.loads(out.read_text())["curves"]["found"]
    assert found["float32"]["cumsum"]["100"]["forward"][0] < 2
    page = tmp_path / "accuracy.md"
    page.write_text(f"before\n{make_accuracy_docs.BEGIN}\nold\n{make_accuracy_docs.END}\nafter\n")
    monkeypatch.setattr(make_accuracy_docs, "PAGE", page)
    assert make_accuracy_docs.main([str(out)]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| cumsum | " in text


def test_numbers_are_those_asked_for():
    assert works.numbers(works.OFFSET, 1e4, (1000,), "float32").mean() == pytest.approx(1e4, rel=1e-4)
    assert abs(np.prod(works.numbers(works.NEAR_1, 1e4, (1000,), "float64"))) < 10
