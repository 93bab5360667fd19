"""Do workers pay for this function, and what does an example cost?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wayfare.batch.analysis.effects import explain_side_effects
from wayfare.batch.analysis.function_analysis import FunctionAnalysis
from wayfare.batch.function_profile import FunctionProfile
from wayfare.core.balance import CostModel

# Maps that run in one process for comparison: the first of them is cold.
_TRIALS = (3, 4)
_JUDGED_AT = 5
_RETRY_AFTER, _MAX_RETRY_AFTER = 16, 512


class _Time:
    """Seconds of a map, for each example; the backward pass follows later."""

    def __init__(self, examples: int, forward: float, backward: Callable[[], float]) -> None:
        self.examples, self.forward, self.backward = examples, forward, backward

    def an_example(self, with_backward: bool) -> float:
        """Seconds for one example."""
        return (self.forward + (self.backward() if with_backward else 0.0)) / self.examples


class WorkerProfile:
    """What is known about workers for one function, from one map to the next.

    After two maps in workers, two run in one process. If that is not slower, the function runs in one process from
    then on, with a warning, and workers are tried again ever less often.
    """

    def __init__(self) -> None:
        self.maps = 0
        # Why it cannot run in workers at all; "" if it can.
        self.refused = ""
        self.slower = ""
        self._by_workers: _Time | None = None
        self._by_one: _Time | None = None
        self._retry_at = 0
        self._backoff = _RETRY_AFTER
        self._analysis: FunctionAnalysis | None = None
        self._effects: dict[tuple[type, ...], str] = {}
        self._model = CostModel(2, memory=1.0)

    def plan(self, profile: FunctionProfile) -> bool:
        """Whether the next map runs in workers."""
        self.maps += 1
        if self.refused:
            return False
        if self.maps in _TRIALS:
            return False
        if self.maps >= max(self._retry_at, _JUDGED_AT) and self._by_workers is not None and self._by_one is not None:
            self._judge(profile)
        return not self.slower or self.maps >= self._retry_at

    def spread_took(self, examples: int, stats: Any) -> None:
        """Note the time of a map in workers."""
        workers = stats.workers
        if self.maps > 1:
            self._by_workers = _Time(examples, workers.whole, lambda: workers.backward)

    def one_took(self, examples: int, seconds: float, timing: Any) -> None:
        """Note the time of a map in one process."""
        if self.maps not in _TRIALS[:-1]:
            self._by_one = _Time(examples, seconds, lambda: 0.0 if timing is None else timing.backward)

    def _judge(self, profile: FunctionProfile) -> None:
        assert self._by_workers is not None and self._by_one is not None
        both = self._by_workers.backward() > 0 and self._by_one.backward() > 0
        spread, one = self._by_workers.an_example(both), self._by_one.an_example(both)
        self._retry_at = self.maps + self._backoff
        if one > spread:
            self.slower, self._backoff = "", _RETRY_AFTER
            self._retry_at = self.maps + _MAX_RETRY_AFTER
            return
        self._backoff = min(2 * self._backoff, _MAX_RETRY_AFTER)
        self.slower = f"an example takes {1e3 * one:.3g} ms in one process and {1e3 * spread:.3g} ms with workers"
        profile.warn_once(f"map: {profile.name} runs in one process from now on, because {self.slower}.")

    def effects_of(self, function: Any, args: tuple[Any, ...]) -> str:
        """What Python objects it may change that others see: a worker would change its own copies. "" for none."""
        if self._analysis is None or not self._analysis.is_of(function):
            self._analysis = FunctionAnalysis(function)
            self._effects = {}
        key = tuple([type(arg) for arg in args])
        found = self._effects.get(key)
        if found is None:
            found = self._effects[key] = explain_side_effects(function, args, (True,) * len(args))
        return found

    # -- what examples cost

    def costs(self, sizes: list[int]) -> list[float]:
        """The predicted cost of examples of these sizes in bytes: of recorded calls, where that was learnt."""
        if self._model.observations < 2:
            return [float(size) for size in sizes]
        each, per_byte = self._model.coefficients
        return [each + per_byte * size for size in sizes] if each or per_byte else [float(size) for size in sizes]

    def learn(self, features: list[list[int]], calls: list[int]) -> None:
        """Learn from (examples, bytes) and recorded calls of each worker. Not from times: examples must be dealt the
        same way in every run, or the sums of gradients would differ in the last bits."""
        if all(calls) and self.maps <= _JUDGED_AT:
            for counted, made in zip(features, calls, strict=True):
                self._model.observe(counted, float(made))


def workers_of(profile: FunctionProfile) -> WorkerProfile:
    """What is known about workers for a function."""
    if profile.workers is None:
        profile.workers = WorkerProfile()
    found: WorkerProfile = profile.workers
    return found
