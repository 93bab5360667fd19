"""What the suite `gpu` stands on: devices that a round waits for, and sides that survive each other's errors."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import crew, sides
from benchmarks.harness import BenchmarkError, Options, Skipped
from benchmarks.sides import COMPILED, TORCH, TORCH_GRAPHS
from benchmarks.worker import Worker, time_steps, warned
from benchmarks.works import Prepared, Unavailable, devices

# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_round_ends_when_the_device_is_done():
    calls = []
    waiting = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: calls.append("wait")))
    wait = devices.synchronizer(waiting, "cuda:0")
    step = Prepared(lambda: calls.append("step"), list)
    time_steps(step, 3, wait)
    assert calls == ["step"] * 3 + ["wait"]
    assert devices.synchronizer(waiting, "cpu") is not waiting.cuda.synchronize


def test_float32_is_not_rounded_to_tf32():
    def switch():
        return SimpleNamespace(allow_tf32=True)

    fake = SimpleNamespace(cuda=SimpleNamespace(synchronize=list), backends=SimpleNamespace(
        cuda=SimpleNamespace(matmul=switch()), cudnn=switch()))  # fmt: skip
    devices.synchronizer(fake, "cuda")
    assert not fake.backends.cuda.matmul.allow_tf32 and not fake.backends.cudnn.allow_tf32
    devices.exact(SimpleNamespace())  # a library without such settings


def test_a_side_says_why_it_cannot_use_the_device():
    absent = SimpleNamespace(__name__="fake", cuda=SimpleNamespace(is_available=lambda: False))
    with pytest.raises(Unavailable, match=r"^fake sees no CUDA device here\.$"):
        devices.describe(absent, "cuda")

    def ones(*_, device):
        raise RuntimeError("no kernel image\nfor this card")

    broken = SimpleNamespace(__name__="fake", cuda=SimpleNamespace(is_available=lambda: True), ones=ones)
    with pytest.raises(Unavailable, match=r"^fake cannot use cuda:1: no kernel image for this card$"):
        devices.describe(broken, "cuda:1")
    assert devices.describe(wf, "cpu") == {"name": "cpu"}
    assert devices.memory(SimpleNamespace(cuda=None)) == (0, 0)


class Meter:
    """Stands for `cuda`: a step of the work needs so many bytes at its peak, and keeps none."""

    def __init__(self, needs):
        self.needs, self.peak = needs, 1e9

    def synchronize(self):
        self.peak = max(self.peak, 100 + self.needs)

    def reset_peak_memory_stats(self):
        self.peak = 100

    def memory_allocated(self):
        return 100

    def max_memory_allocated(self):
        return self.peak


def test_the_peak_of_a_step_is_what_it_needs_beyond_the_rest(monkeypatch):
    monkeypatch.setattr(devices, "resolve", lambda of: lambda m, device, length: Prepared(list, list))
    assert devices.peak_of_step(SimpleNamespace(cuda=Meter(70)), "any", device="cuda", length=3) == 70
    with pytest.raises(Unavailable, match="only a CUDA device counts its memory"):
        devices.peak_of_step(wf, "any")


# -- sides in their processes ------------------------------------------------------------------------------------------


class Fake:
    """Stands for a worker: its results and seconds are given, and `fails` names the request that fails."""

    def __init__(self, log, name, value=1.0, fails=None, error=BenchmarkError):
        self.log, self.name, self.value, self.fails, self.error = log, name, value, fails, error

    def _note(self, request):
        self.log.append((self.name, request))
        if request == self.fails:
            raise self.error(f"{self.name} failed in {request}\nCUDA_ERROR_ILLEGAL_ADDRESS")

    def prepare(self, work, **parameters):
        self._note("prepare")
        return [f"{self.name} runs as plain Python"]

    def save_results(self, path):
        self._note("results")
        np.savez(path, np.full(3, self.value, np.float32))

    def time(self, number):
        self._note("time")
        return 0.01

    def release(self):
        self._note("release")

    def close(self):
        self._note("close")


def competing(monkeypatch, module=sides.PYTORCH, **fakes):
    """What a crew makes of these sides, and what they were asked."""
    log, started = [], []
    ways = {sides.Side(name, module, "eager"): given for name, given in fakes.items()}

    def start(side, options):
        started.append(side.name)
        return Fake(log, side.name, **ways[side])

    monkeypatch.setattr(sides.Side, "worker", start)
    with crew.Crew(Options(quick=True)) as kept:
        outcome = kept.compete({side: {} for side in ways}, "any", 1.0)
        kept.release()
        again = kept.compete({side: {} for side in ways}, "any", 1.0)
    return outcome, again, log, started


def test_processes_are_kept_and_sides_take_turns(monkeypatch):
    outcome, again, log, started = competing(monkeypatch, one={}, other={})
    assert started == ["one", "other"]
    assert {side.name: len(rounds) for side, rounds in outcome.seconds.items()} == {"one": 5, "other": 5}
    assert not outcome.reasons and not again.reasons
    assert log.count(("one", "release")) == 1 and log.count(("one", "close")) == 1


@pytest.mark.parametrize("request_", ["prepare", "results", "time"])
def test_after_an_error_a_side_gets_a_new_process(monkeypatch, request_):
    outcome, _, _, started = competing(monkeypatch, one={}, broken={"fails": request_})
    assert [side.name for side in outcome.seconds] == ["one"]
    assert list(outcome.reasons.values()) == ["CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert started == ["one", "broken", "broken"]


def test_a_side_that_lacks_a_feature_keeps_its_process(monkeypatch):
    outcome, _, _, started = competing(monkeypatch, one={}, lacking={"fails": "prepare", "error": Skipped})
    assert list(outcome.reasons.values()) == ["lacking failed in prepare CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert started == ["one", "lacking"]


def test_a_side_that_disagrees_is_not_timed(monkeypatch):
    outcome, _, log, _ = competing(monkeypatch, one={}, wrong={"value": 1.5})
    assert [side.name for side in outcome.seconds] == ["one"]
    assert next(iter(outcome.reasons.values())).startswith("it disagrees with one: result 0 differs by up to 0.5")
    assert ("wrong", "time") not in log


def test_what_wayfare_warns_of_is_kept(monkeypatch):
    outcome, *_ = competing(monkeypatch, module=sides.WAYFARE, one={})
    assert list(outcome.remarks.values()) == [["one runs as plain Python"]]
    assert not competing(monkeypatch, one={})[0].remarks  # PyTorch's are many, and not ours


def test_warnings_are_kept_and_shown():
    with pytest.warns(UserWarning) as shown:
        with warned() as texts:
            warnings.warn("as plain Python", stacklevel=1)
        warnings.warn("outside", stacklevel=1)
    assert texts == ["as plain Python"]
    assert [str(warning.message) for warning in shown] == ["as plain Python", "outside"]


def test_what_compiles_for_pytorch_is_always_new(monkeypatch):
    started = []
    monkeypatch.setattr(sides.Side, "worker", lambda side, options: started.append(side.name) or Fake([], side.name))
    with crew.Crew(Options()) as kept:
        for _ in range(2):
            kept.worker(TORCH_GRAPHS)
            kept.worker(TORCH)
            kept.worker(COMPILED)
    assert started.count(TORCH_GRAPHS.name) == 2
    assert started.count(TORCH.name) == started.count(COMPILED.name) == 1


def test_a_side_that_never_answers_is_ended():
    with (
        Worker("wayfare", 1, patience=5.0) as worker,
        pytest.raises(BenchmarkError, match=r"^wayfare gave no answer for 5 s in the work chain\.small_ops\.$"),
    ):
        worker.prepare("chain.small_ops", ops=10**10)
