"""The suite `compile`: its steps agree on every side, decide by their data, and what a side lacks is said."""

from __future__ import annotations

import dataclasses
import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import agreement, contest, costs, judging, quiet, sides
from benchmarks import compile as suite
from benchmarks.harness import Measurement, Options, Report, Skipped
from benchmarks.sides import COMPILED, EAGER, JAX, TORCH
from benchmarks.works import Prepared, Unavailable, lengths, memory, models, starting, steps

SMALL = {
    "logistic": {"rows": 20, "columns": 3},
    "mlp": {"batch": 4, "sizes": (5, 6, 3)},
    "transformer": {"width": 8, "length": 5, "batch": 2},
    "lstm_loop": {"batch": 3, "length": 4, "size": 3, "hidden": 5},
    "halting": {},
}
RATE = 1e-2


def losses(module, mode, work):
    return getattr(steps, work)(module, mode, RATE, **SMALL[work]).results()


@pytest.mark.parametrize("work", SMALL)
def test_both_sides_compute_the_same(work):
    torch = pytest.importorskip("torch", reason="the other side is PyTorch")
    assert agreement.difference(losses(wf, "eager", work), losses(torch, "eager", work)) is None


@pytest.mark.parametrize("work, mode", [*((work, "jit") for work in SMALL if work != "halting"),
                                        ("lstm_loop", "rewritten"), ("halting", "rewritten")])  # fmt: skip
def test_jax_computes_the_same(work, mode):
    jax = pytest.importorskip("jax", reason="the other side is JAX")
    assert agreement.difference(losses(jax, mode, work), losses(wf, "eager", work)) is None


def test_jax_says_that_it_cannot_branch_on_values():
    jax = pytest.importorskip("jax", reason="the other side is JAX")
    with pytest.raises(Unavailable, match="TracerBoolConversionError"):
        steps.halting(jax, "jit").step()


@pytest.mark.parametrize("work", SMALL)
def test_every_step_learns(work):
    (found,) = losses(wf, "eager", work)
    kinds = len(found) // models.COMPARED_STEPS
    assert (found[-kinds:] < found[:kinds]).mean() > 0.7


def test_the_halting_model_takes_different_ways_none_of_them_narrowly():
    """Rounding must not decide, or the sides would do different work."""
    turns, long = [], []
    values = models.weights(models.linear("turn", 64, 64))
    for h, _ in models.halting_batches():
        turns.append(0)
        while (size := np.abs(h).mean()) > models.HALT_BELOW:
            assert abs(size / models.HALT_BELOW - 1) > 0.02
            h = 0.7 * h + 0.1 * np.tanh(h @ values["turn.weight"].T + values["turn.bias"])
            turns[-1] += 1
        assert abs(np.linalg.norm(h) / models.LONG - 1) > 0.02
        assert abs(np.abs(h).mean() / models.HALT_BELOW - 1) > 0.02
        long.append(bool(np.linalg.norm(h) > models.LONG))
    assert len(set(turns)) >= 4 and max(turns) < models.MOST_TURNS
    assert len(set(long)) == 2


def test_a_mode_is_asked_of_the_library():
    asked = []
    fake = SimpleNamespace(__name__="fake", compile=lambda step, check=None: asked.append(check) or step)
    for mode in ("eager", "fused Adam", "compiled", "unchecked"):
        assert steps.compiled(fake, mode, len) is len
    assert asked == [None, False]
    with pytest.raises(Unavailable, match=r"^bare has no compile\(\)\.$"):
        steps.compiled(SimpleNamespace(__name__="bare"), "compiled", len)
    with pytest.raises(Unavailable, match=r"^bare\.compile\(\) has no check=\.$"):
        steps.compiled(SimpleNamespace(__name__="bare", compile=lambda step: step), "unchecked", len)


def test_epochs_meet_every_length_once_in_different_orders(monkeypatch):
    met = []

    def spying(m, mode, model, shapes, loss_of, rate, kind="Adam"):
        return lambda x, y: met.append(x.shape[1]) or x.mean(), None

    monkeypatch.setattr(lengths, "training_step", spying)
    answer = lengths.epochs(wf, "eager", number=2, count=6, batch=1, width=4)
    first, second = met[:6], met[6:]
    assert sorted(first) == sorted(second) == list(range(lengths.SHORTEST, lengths.SHORTEST + 6))
    assert first != second
    assert [len(values) for values in answer.values()] == [2, 2, 2]
    assert [len(epoch) for epoch in answer["made"]] == [6, 6]


def test_what_was_compiled_late_is_counted():
    assert costs._made([[3, 1, 0, 0, 0, 2], [4, 0, 0, 0, 0, 0, 1]]) == (11, 3)


def test_first_calls_are_each_timed_and_finished(monkeypatch):
    log = []
    prepared = Prepared(lambda: log.append("step"), list, lambda: log.append("finish"))
    monkeypatch.setattr(starting, "resolve", lambda work: lambda m, mode: prepared)
    answer = starting.first_calls(wf, "eager", "some.work", calls=2)
    assert log == ["step", "finish"] * 2
    assert len(answer["seconds"]) == 2 and {"built", "loaded"} < set(answer)


@pytest.mark.skipif(not memory.measurable(), reason="only Linux tells and resets a high-water mark")
def test_memory_held_between_steps_counts(monkeypatch):
    size = 64 * 1024 * 1024
    held = []

    def work(m, hold):
        mine = held if hold else []
        kept = np.ones(size // 8)  # of the model: not the step's

        def step():
            mine[:] = [np.ones(size // 8)]
            if not hold:
                mine.clear()

        return Prepared(step, list, kept=kept)

    monkeypatch.setattr(memory, "resolve", lambda name: work)
    monkeypatch.setattr(memory.gc, "collect", lambda: None)
    transient = memory.peak_with_held(wf, "some.work", steps=1, warm=1, hold=False)
    assert 0.9 * size < transient[0] < 1.5 * size
    # What a step gives back when it is dropped, and only then.
    monkeypatch.setattr(memory.gc, "collect", held.clear)
    dropped = memory.peak_with_held(wf, "some.work", steps=1, warm=1, hold=True)
    assert 0.9 * size < dropped[0] < 1.5 * size


class Timed:
    """A worker of which every round is as it is told: (seconds of a step, whether its threads waited)."""

    def __init__(self, *rounds, module="fake"):
        self.rounds, self.module = list(rounds), module

    def time(self, number):
        return 0.001

    def next(self, number, waiting):
        seconds, undisturbed = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        return seconds, undisturbed


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(quiet, "timed_round", lambda worker, number, waiting: worker.next(number, waiting))
    monkeypatch.setattr(quiet, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(quiet, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(Options, "rounds", property(lambda self: 4))


def test_disturbed_rounds_do_not_count(told):
    workers = {TORCH: Timed((0.001, True)), EAGER: Timed((0.009, False), (0.002, True))}
    kept, disturbed = contest.alternate(Options(), workers, 0.1)
    assert kept == {TORCH: [0.001] * 4, EAGER: [0.002] * 3}
    assert disturbed == set()


@pytest.mark.parametrize("quick, shown", [(False, []), (True, [0.009] * 4)])
def test_a_side_without_undisturbed_rounds_has_no_figure_but_in_a_look(told, quick, shown):
    kept, disturbed = contest.alternate(Options(quick=quick), {TORCH: Timed((0.009, False))}, 0.1)
    assert kept == {TORCH: shown}
    assert disturbed == ({TORCH} if quick else set())


def test_rounds_too_short_are_made_longer_and_not_kept(told):
    asked = []
    worker = Timed((0.0001, True))
    worker.next = lambda number, waiting: asked.append(number) or (0.0001, True)
    kept, _ = contest.alternate(Options(), {TORCH: worker}, 0.1)
    assert asked == [30, 300, 300, 300]
    assert len(kept[TORCH]) == 3


class Answering:
    """A worker process that saves what it is given as its results."""

    def __init__(self, values):
        self.values = values

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def call(self, work, path, parameters, **_):
        if self.values is None:
            raise Skipped("it cannot.")
        np.savez(path, self.values)


def test_a_side_that_disagrees_or_cannot_is_out_for_a_reason(monkeypatch):
    ones = np.ones(3, np.float32)
    values = {TORCH: ones, EAGER: ones, COMPILED: 2 * ones, JAX: None}
    monkeypatch.setattr(sides.Side, "worker", lambda self, options: Answering(values[self]))
    reasons = contest.disagreeing(Options(), list(values), "some.work")
    assert reasons[JAX] == "it cannot."
    assert "disagrees with PyTorch eager: result 0 differs by up to 1" in reasons[COMPILED]
    assert set(reasons) == {JAX, COMPILED}


def test_a_library_that_is_not_there_is_named():
    with pytest.raises(Skipped, match=r"^no_such_library cannot be imported\.$"):
        TORCH.worker(Options(peer="no_such_library"))


def test_the_fastest_peer_is_the_one_judged_against():
    outcome = contest.Outcome({TORCH: [0.03, 0.02], JAX: [0.01, 0.04]}, {}, {JAX})
    assert outcome.fastest([TORCH, JAX]) is JAX
    assert outcome.fastest([EAGER]) is None
    assert [outcome.cell(side, "ms") for side in (TORCH, JAX, EAGER)] == ["20.0", "~10.0", "—"]


def test_tables_fit_the_width_and_judge_each_row(capsys):
    report = Report("compile", Options(subject="numpy", peer="json"), console=suite.Console(width=suite.WIDTH))
    cells = [["a rather long name of a step, µs", *(["~1234"] * len(sides.COLUMNS))]]
    judging.grid(report, "Title", ["step", *(side.name for side in sides.COLUMNS)], cells)
    rows = [
        Measurement("steps", "over PyTorch eager", "µs", [[1.0], [10.0]], 0.2, 0.05),
        Measurement("lengths", "kernels built late", "", [[0.0]], 0.0, absolute=True),
    ]
    judging.judge(report, "Judged", rows)
    judging.sum_up(report, "As measured here.")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= suite.WIDTH
    assert "0.100×" in printed and "≤ 0.2 ✓" in printed and "≤ 0.05 ✗" in printed and "≤ 0 ✓" in printed
    assert "must: 2 of 2 rows met" in printed and "aim:  0 of 1 rows met" in printed
    assert all(side.name.split()[-1] in printed for side in sides.COLUMNS)


def test_every_row_names_a_work_that_exists():
    assert all(callable(getattr(steps, row.work.removeprefix("steps."))) for row in suite.ROWS)
    assert set(suite.CHECKED) < {row.name for row in suite.ROWS}


def test_the_whole_suite_runs(monkeypatch, tmp_path, one_round):
    """Every part once, small, in real processes; each ends as a figure or as a reason."""
    pytest.importorskip("torch", reason="the peer is PyTorch")
    rows = [dataclasses.replace(row, more=()) for row in suite.ROWS if row.name == "small mlp"]
    monkeypatch.setattr(suite, "ROWS", rows)
    monkeypatch.setattr(suite, "SMALLER", {"small mlp": SMALL["mlp"]})
    # The compilers of the peers take half a minute each; and PyTorch itself seconds in every new process.
    monkeypatch.setattr(suite, "COLUMNS", [TORCH, COMPILED])
    monkeypatch.setattr(costs, "SIDES", [EAGER, COMPILED])
    monkeypatch.setattr(costs, "STARTERS", [COMPILED])
    size = {**SMALL["transformer"], "layers": 1}
    parts = {
        "checks": suite.checks,
        "lengths": functools.partial(costs.lengths, count=6, epochs=2, batch=2, width=8),
        "first call": functools.partial(costs.first_call, **size),
        "memory": functools.partial(costs.peak_memory, **size),
    }
    assert set(parts) == set(suite.PARTS)
    monkeypatch.setattr(suite, "PARTS", parts)
    target = tmp_path / "figures.json"
    assert command.main(["compile", "--quick", "--threads", "1", "--json", str(target)]) == 0
    figures = json.loads(target.read_text())
    assert figures["curves"]["seconds, small mlp"]["PyTorch eager"]
    assert "Wayfare eager" in figures["curves"]["lengths"]
    reasons = [skip["reason"] for skip in figures["skipped"]]
    assert all("check=" in reason for reason in reasons)
    assert {row["part"] for row in figures["measurements"]} >= {"steps", "lengths"}


def test_a_ratio_from_disturbed_rounds_is_marked():
    outcome = contest.Outcome({COMPILED: [1e-6, 2e-6], TORCH: [4e-6, 5e-6, 6e-6]}, {}, {TORCH})
    row, limit = suite.ROWS[0], suite.Limit(TORCH, 0.2, 0.1)
    judged = row.measured("steps", "title", outcome, COMPILED, TORCH, limit)
    assert judged.work == "~title" and judged.ratio_of_best == pytest.approx(0.25) and judged.met is False
    outcome.disturbed.clear()
    assert row.measured("steps", "title", outcome, COMPILED, TORCH, limit).work == "title"
