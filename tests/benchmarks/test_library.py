"""The suite `library`: its works compute the same on both sides, and training really changes the weights."""

import importlib

import numpy as np
import pytest

import wayfare as wf
from benchmarks import agreement, library
from benchmarks.works import resolve
from benchmarks.works.training import OPTIMISERS

WORKS = [
    ("training.mlp", {"batch": 4, "sizes": (5, 6, 3)}),
    ("training.cnn", {"batch": 3}),
    ("training.transformer", {"width": 8, "length": 5, "batch": 2}),
    ("training.packed_lstm", {"count": 4, "size": 3, "hidden": 5, "longest": 9}),
    *(("training.table", {"optimiser": name, "rows": 50, "width": 3, "touched": 7}) for name in OPTIMISERS),
    *(("training.adam", {"kind": kind, "layers": 1}) for kind in ("Adam", "AdamW")),
]


@pytest.mark.parametrize("work, parameters", WORKS, ids=str)
def test_both_sides_compute_the_same(work, parameters):
    torch = pytest.importorskip("torch", reason="the other side is PyTorch")
    ours, theirs = (resolve(work)(m, **parameters).results() for m in (wf, torch))
    assert agreement.difference(ours, theirs) is None


@pytest.mark.parametrize("work, parameters", WORKS[:-2], ids=str)
def test_a_step_changes_what_comes_out(work, parameters):
    prepared = resolve(work)(wf, **parameters)
    before = prepared.results()
    for _ in range(3):
        prepared.step()
    assert any(not np.array_equal(a, b) for a, b in zip(before, prepared.results(), strict=True))


def test_every_part_names_a_work_that_exists():
    source = importlib.import_module("inspect").getsource(library)
    named = {word.strip('",') for word in source.split() if word.startswith('"training.')}
    assert named == {f"training.{name}" for name in ("mlp", "cnn", "transformer", "packed_lstm", "adam", "table")}
    for work in named:
        assert callable(resolve(work))
