"""The benchmarks run whole, on both sides, and both sides compute the same. Nothing here looks at a clock."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import eager, harness
from benchmarks.harness import BenchmarkError, Measurement, Options, Report, Sides, interleave
from benchmarks.worker import Worker
from benchmarks.works import resolve

TINY_MLP = {"batch": 8, "sizes": [12, 7, 5, 3]}
WORKS = [
    ("chain.small_ops", {"ops": 20}),
    ("chain.small_ops_forward", {"ops": 20}),
    ("chain.small_products", {"ops": 20}),
    ("crf.tagger", {"sentences": 1, "length": 3}),
    ("mlp.by_hand", TINY_MLP),
    ("mlp.with_cross_entropy", TINY_MLP),
    *(("elementwise.forward", {"op": op, "count": 100}) for op in ("add", "mul", "exp", "tanh", "gelu", "sum")),
    ("elementwise.forward_and_backward", {"count": 100}),
    ("growth.scaled", {"nodes": 100}),
    *(("growth.changed", {"number": number}) for number in range(6)),
]


class Recorder:
    """Stands for a worker: remembers what it was asked, in an order shared with the other side."""

    def __init__(self, name, log, seconds):
        self.name, self.log, self.seconds = name, log, seconds

    def prepare(self, work, **parameters):
        self.log.append((self.name, work))

    def time(self, number):
        self.log.append((self.name, number))
        return self.seconds


def recorded_sides(seconds=(0.001, 0.003)):
    log = []
    sides = Sides.__new__(Sides)
    sides.workers = [Recorder("mine", log, seconds[0]), Recorder("theirs", log, seconds[1])]
    return sides, log


@pytest.mark.parametrize("work, parameters", WORKS, ids=lambda value: value if isinstance(value, str) else "")
def test_both_sides_compute_the_same(work, parameters):
    torch = pytest.importorskip("torch")
    wayfare = importlib.import_module("wayfare")
    mine, theirs = (resolve(work)(m, **parameters) for m in (wayfare, torch))
    mine.step()
    theirs.step()
    ours, referees = mine.results(), theirs.results()
    assert len(ours) == len(referees) > 0
    for our, referee in zip(ours, referees, strict=True):
        assert our.dtype == referee.dtype == np.float32
        np.testing.assert_allclose(our, referee, rtol=1e-4, atol=1e-5)
    assert all(np.abs(referee).max() > 0 for referee in referees), "a vanished gradient compares nothing"


def test_rounds_alternate_and_take_turns_at_going_first():
    sides, log = recorded_sides()
    seconds = interleave(sides, "chain.small_ops", 4)
    assert log[:4] == [("mine", "chain.small_ops"), ("theirs", "chain.small_ops"), ("mine", 1), ("theirs", 1)]
    assert [name for name, _ in log[4:]] == ["mine", "theirs", "theirs", "mine"] * 2
    assert len({number for _, number in log[4:]}) == 1, "both sides must run equally many steps"
    assert seconds == [[0.001] * 4, [0.003] * 4]


def test_ratios_come_from_best_rounds_and_from_pairs():
    row = Measurement("part", "work", "ms", [[2.0, 6.0, 9.0], [4.0, 6.0, 6.0]], wanted=0.6)
    assert row.ratio_of_best == 0.5
    assert row.median_ratio == 1.0
    assert row.met is True
    assert Measurement("part", "work", "ms", [[3.0], [4.0]], wanted=0.6).met is False
    assert Measurement("part", "work", "ms", [[3.0]], wanted=0.6).met is None


def test_a_missing_peer_leaves_the_subject_alone(capsys):
    report = Report("eager", Options(subject="numpy", peer="no_such_library"))
    report.begin()
    report.add("A title", [Measurement("part", "work", "ms", [[3.0]], wanted=0.6)])
    printed = capsys.readouterr().out
    assert "no_such_library cannot be imported: numpy is shown alone." in printed
    assert "3.00 ms" in printed
    assert "×" not in printed


def test_a_missing_subject_is_one_sentence(capsys):
    assert command.main(["eager", "--subject", "no_such_library"]) == 1
    assert capsys.readouterr().err == "\nbenchmarks: no_such_library cannot be imported: install it first.\n"


def test_a_failing_work_names_the_side_and_the_work():
    with (
        Worker("math", 1) as worker,
        pytest.raises(BenchmarkError, match=r"math failed in the work chain\.small"),
    ):
        worker.prepare("chain.small_ops")


def test_tables_fit_the_width_and_judge_each_row(capsys):
    report = Report("eager", Options(subject="numpy", peer="json"))
    rows = [
        Measurement("part", "a rather long name of a work that must wrap", "µs", [[0.5], [1.0]], wanted=0.6),
        Measurement("part", "slow", "µs", [[123.4], [12.34]], wanted=0.6),
        Measurement("part", "aside", "µs", [[1.0], [1.0]]),
    ]
    report.add("A title", rows)
    printed = capsys.readouterr().out
    assert all(len(line) <= harness.WIDTH for line in printed.splitlines())
    assert "0.50×" in printed and "≤ 0.6 ✓" in printed
    assert "10.00×" in printed and "≤ 0.6 ✗" in printed
    assert printed.count("≤") == 2


def test_a_sparkline_starts_at_zero():
    assert harness.sparkline([0, 4, 8]) == "▁▅█"
    assert harness.sparkline([7, 7]) == "██"


def test_the_command_finds_every_suite():
    assert command.suites()["eager"] is eager


def test_the_whole_suite_runs_on_every_side(monkeypatch, tmp_path, capsys, one_round):
    """Every part once, as short as can be, in real processes."""
    pytest.importorskip("torch")
    target = tmp_path / "figures.json"
    assert command.main(["eager", "--quick", "--threads", "1", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    assert figures["modules"] == ["wayfare", "torch"]
    measured = {row["part"] for row in figures["measurements"]}
    assert measured | {"changing"} >= set(eager.PARTS) - {"memory"}
    for row in figures["measurements"]:
        assert len(row["rounds"]) == 2
        assert len(row["rounds"][0]) == len(row["rounds"][1]) > 0
        assert row["ratio_of_best"] > 0
    for module in figures["modules"]:
        curve = figures["curves"][f"changing, {module}"]
        assert [point["step"] for point in curve] == list(range(0, 1001, 100))
        # The first point precedes the first step, which may cache a constant or two.
        live = {point["tensors"] for point in curve[1:]}
        assert len(live) == 1, f"{module} keeps tensors alive between steps: {live}"
    assert "wayfare" in capsys.readouterr().out
