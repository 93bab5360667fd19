"""Interleaved rounds of which only the undisturbed count.

A neighbour that takes one core costs a one-threaded side little, and a side whose threads spin for each other many
times its speed: a ratio measured beside it is not blurred but wrong, and in the subject's favour. The kernel tells how
long threads were ready to run and had no core. A round is judged by that, never by the time it took.
"""

from __future__ import annotations

from time import perf_counter, sleep
from typing import Any

from benchmarks import harness
from benchmarks.harness import Sides, Skipped
from benchmarks.worker import Worker

WAITING_SHARE = 0.1  # of a round, all threads together; an idle machine shows 0.02 to 0.08
PATIENCE_SECONDS = 20.0  # for one row, once it has had as many rounds as it wants
PAUSE_SECONDS = 0.1  # a neighbour may be gone by then
# OpenMP's threads spin for some 13 ms after their last work, OpenBLAS's for 100: the other side's must be asleep.
SETTLE_SECONDS = 0.12


def quiet_rounds(
    sides: Sides, work: str, rounds: int, waiting: float = WAITING_SHARE, **parameters: Any
) -> list[list[float]]:
    """Seconds per step of each side in `rounds` undisturbed rounds; Skipped if the machine does not allow half of them.

    Each side runs for about as long as the other, not for as many steps: a side many times faster would otherwise get
    one lonely step a round, with its threads asleep and its caches cold.
    """
    sides.prepare(work, **parameters)
    numbers = [max(1, round(harness.ROUND_SECONDS / min(w.time(1) for _ in range(3)))) for w in sides.workers]
    kept: list[list[float]] = []
    turns = 0
    started = perf_counter()
    while len(kept) < rounds and (turns < rounds or perf_counter() - started < PATIENCE_SECONDS):
        seconds = [0.0] * len(numbers)
        quiet = True
        # Whoever goes first finds the caches cold and the clock speed low, so they take turns.
        for side in range(len(numbers)) if turns % 2 == 0 else reversed(range(len(numbers))):
            seconds[side], undisturbed = timed_round(sides.workers[side], numbers[side], waiting)
            quiet = quiet and undisturbed
        turns += 1
        short = [n * s < harness.ROUND_SECONDS / 2 for n, s in zip(numbers, seconds, strict=True)]
        if not quiet:
            sleep(PAUSE_SECONDS)
        elif any(short):  # the first estimate was disturbed: a round of too few steps never gets warm
            longer = [round(harness.ROUND_SECONDS / s) for s in seconds]
            numbers = [b if few else a for a, b, few in zip(numbers, longer, short, strict=True)]
        else:
            kept.append(seconds)
    if 2 * len(kept) < rounds:
        raise Skipped(f"the machine was busy, {len(kept)} of {turns} rounds were undisturbed.")
    return [list(side) for side in zip(*kept, strict=True)]


def timed_round(worker: Worker, number: int, waiting: float) -> tuple[float, bool]:
    """Seconds per step of a round of `number` steps, and whether its threads waited less than that share of it."""
    sleep(SETTLE_SECONDS)
    before = worker.call("threads.waited")
    seconds = worker.time(number)
    after = worker.call("threads.waited")
    return seconds, before is None or after - before <= waiting * seconds * number
