"""The suite `kernels`: its works agree, busy rounds do not count, and missing features are said, not guessed."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import agreement, harness, kernels, quiet
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, Sides, Skipped
from benchmarks.works import Unavailable, adam, resolve, rowwise

FUSING = ["fusing.affine_tanh", "fusing.ten_ops", "fusing.lstm_gates"]
SMALL = {"fusing.lstm_gates": {"batch": 3, "hidden": 4}}
WORKS = [
    *((work, {"fused": fused, "backward": back, **SMALL.get(work, {"count": 100})})
      for work in FUSING for fused in (False, True) for back in (False, True)),
    *(("rowwise.forward_and_backward", {"kind": kind, "rows": 5, "columns": 7}) for kind in rowwise.KINDS),
    *(("adam.update", {"variant": variant, "layers": 1}) for variant in ("default", "foreach", "fused")),
]  # fmt: skip


def both(work, parameters):
    torch = pytest.importorskip("torch")
    wayfare = importlib.import_module("wayfare")
    try:
        return [resolve(work)(m, **parameters).results() for m in (wayfare, torch)]
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("work, parameters", WORKS, ids=str)
def test_both_sides_compute_the_same(work, parameters):
    assert agreement.difference(*both(work, parameters)) is None


def test_adam_has_five_million_parameters_in_forty_tensors():
    assert kernels.Sizes().parameters == 5_000_000
    assert 2 * adam.LAYERS == 40


@pytest.mark.parametrize("threads", [1, 3])
def test_every_thread_copies_its_piece(threads):
    (copied,) = adam.copying(np, 100, threads).results()
    assert copied.tolist() == [1.0] * 100


def test_a_side_without_fused_says_so():
    bare = SimpleNamespace(__name__="bare", from_numpy=lambda array: SimpleNamespace(requires_grad_=lambda: array))
    with pytest.raises(Unavailable, match=r"^bare has no fused\(\)\.$"):
        resolve("fusing.affine_tanh")(bare, fused=True, backward=False, count=3)


A = np.array([1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    "ours, theirs, reason",
    [
        ([A], [A, A], "1 results against 2"),
        ([A], [A[:1]], r"float32\[2\] against float32\[1\]"),
        ([A], [A * 0], "compares nothing"),
        ([A * np.nan], [A], "differs"),
        ([A], [A * np.nan], "compares nothing"),
        ([A * 1.001], [A], "differs by up to 0.002"),
    ],
)
def test_results_that_differ_are_told_apart(ours, theirs, reason):
    found = agreement.difference(ours, theirs)
    assert found is not None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found)
    assert agreement.difference([A * (1 + 1e-6)], [A]) is None


def test_disagreement_stops_the_suite_before_timing(monkeypatch):
    class Side:
        def __init__(self, module, values):
            self.module, self.values = module, values

        def call(self, work, path, **_):
            np.savez(path, self.values)

    sides = Sides.__new__(Sides)
    sides.workers = [Side("mine", A), Side("theirs", 2 * A)]
    with pytest.raises(BenchmarkError, match=r"mine and theirs disagree in the work chain\.small_ops"):
        agreement.check(sides, "chain.small_ops")


class Waiting:
    """A worker whose threads wait for a core in the rounds it is told; a step takes 1 ms, or 9 in such a round."""

    def __init__(self, disturbed, known=True, estimate=0.001):
        self.disturbed, self.known, self.estimate = list(disturbed), known, estimate
        self.numbers = []
        self.clock, self.rounds, self.prepared = 0.0, 0, 0

    def prepare(self, work, **parameters):
        self.prepared += 1

    def call(self, work):
        assert work == "threads.waited"
        return self.clock if self.known else None

    def time(self, number):
        if number == 1:  # how long a step takes, before the rounds
            return self.estimate
        self.rounds += 1
        self.numbers.append(number)
        if self.disturbed and self.disturbed.pop(0):
            self.clock += 0.009 * number
            return 0.009
        return 0.001


def waiting_sides(*workers):
    sides = Sides.__new__(Sides)
    sides.workers = list(workers)
    return sides


def test_a_disturbed_round_counts_for_no_side_and_is_repeated(monkeypatch):
    monkeypatch.setattr(quiet, "PAUSE_SECONDS", 0.0)
    sides = waiting_sides(Waiting([]), Waiting([False, True, True]))
    assert quiet.quiet_rounds(sides, "work", 4) == [[0.001] * 4, [0.001] * 4]
    assert [worker.rounds for worker in sides.workers] == [6, 6]


def test_a_busy_machine_gives_no_figure(monkeypatch):
    monkeypatch.setattr(quiet, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(quiet, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(Skipped, match=r"the machine was busy, 1 of 4 rounds were undisturbed\."):
        quiet.quiet_rounds(waiting_sides(Waiting([True, True, False, True]), Waiting([])), "work", 4)


def test_rounds_too_short_after_a_disturbed_estimate_do_not_count():
    sides = waiting_sides(Waiting([], estimate=0.01))
    assert quiet.quiet_rounds(sides, "work", 2) == [[0.001] * 2]
    assert sides.workers[0].numbers == [3, 30, 30]


def test_where_waiting_is_unknown_every_round_counts():
    sides = waiting_sides(Waiting([True], known=False))
    assert quiet.quiet_rounds(sides, "work", 3) == [[0.009, 0.001, 0.001]]


def test_must_and_aim_are_judged_each(capsys):
    report = Report("kernels", Options(subject="numpy", peer="json"))
    report.add("A title", [Measurement("part", "work", "ms", [[4.0], [10.0]], 0.6, 0.3)])
    report.add("Alone", [Measurement("part", "made", "ms", [[50.0, 70.0, 90.0]], 80.0, 30.0, absolute=True)])
    printed = capsys.readouterr().out
    assert "≤ 0.6 ✓" in printed and "≤ 0.3 ✗" in printed
    assert "50.0 ms" in printed and "70.0 ms" in printed
    assert "≤ 80 ✓" in printed and "≤ 30 ✗" in printed
    assert all(len(line) <= harness.WIDTH for line in printed.splitlines())


@pytest.mark.parametrize(
    "state, built, loaded, problem",
    [
        ("cold", 1, 0, None),
        ("cold", 0, 1, "no kernel was built."),
        ("from disk", 0, 1, None),
        ("from disk", 1, 0, "a kernel was built although the cache folder should hold it."),
        ("from disk", 0, 0, "no kernel was loaded."),
    ],
)
def test_a_build_that_was_none_gives_no_figure(state, built, loaded, problem):
    assert kernels._not_what_was_meant(state, [{"built": built, "loaded": loaded}]) == problem


def test_the_whole_suite_runs_on_every_side(monkeypatch, tmp_path, one_round):
    """Every part once, small, in real processes; each ends as a row or as a reason."""
    pytest.importorskip("torch")
    sizes = kernels.Sizes(elementwise=(1000,), chain=1000, rows=8, columns=16, layers=1, copied=1000)
    monkeypatch.setattr(kernels, "SIZES", sizes)
    target = tmp_path / "figures.json"
    assert command.main(["kernels", "--quick", "--threads", "1", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    assert {row["part"] for row in figures["measurements"] + figures["skipped"]} == set(kernels.PARTS)
    for row in figures["measurements"]:
        assert len(row["rounds"]) == (1 if row["absolute"] else 2)
    assert all(skip["reason"] for skip in figures["skipped"])
