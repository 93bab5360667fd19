"""The output of a run: a progress bar and a row for each epoch, or plain lines where it is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

WIDTH = 80
_EVERY = 10.0  # seconds between two plain lines within an epoch


class Screen:
    """Prints the epoch table; on a terminal also a bar with rate and time left, which disappears again."""

    def __init__(self, shown: bool = True, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stdout, markup=False, highlight=False, soft_wrap=True)
        self._shown = shown
        self._live = shown and self._console.is_terminal
        self._columns: list[str] = []
        self._widths: list[int] = []
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._epoch = 0
        self._epochs = 0
        self._total: int | None = None
        self._last = 0.0
        self._start = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        if self._shown:
            (self._progress.console if self._progress is not None else self._console).print(text)

    @contextmanager
    def epoch(self, number: int, epochs: int, total: int | None) -> Iterator[None]:
        """Show the progress of one epoch while the block runs."""
        self._epoch, self._epochs, self._total = number, epochs, total
        self._start = self._last = time.monotonic()
        if not self._live:
            yield
            return
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
                   TextColumn("{task.fields[note]}"), TimeRemainingColumn(compact=True))  # fmt: skip
        with Progress(*columns, console=self._console, transient=True) as progress:
            self._progress = progress
            self._task = progress.add_task(f"epoch {number}/{epochs}", total=total, note="")
            try:
                yield
            finally:
                self._progress = None

    def step(self, done: int, loss: float) -> None:
        """One more batch is done."""
        if not self._shown:
            return
        now = time.monotonic()
        rate = done / max(now - self._start, 1e-9)
        note = f"loss {loss:.4g}  {rate:.1f} it/s"
        if self._progress is not None:
            self._progress.update(self._task, completed=done, note=note)
        elif now - self._last > _EVERY:
            self._last = now
            left = f" of {self._total}, {(self._total - done) / rate:.0f} s left" if self._total else ""
            self.say(f"epoch {self._epoch}/{self._epochs}: {done}{left}, {note}")

    def row(self, record: dict[str, Any], scores: list[str]) -> None:
        """The row of an epoch that has ended; the heading comes before the first, or when the columns change."""
        columns = ["epoch", *scores, "ms/it", "peak MB"]
        cells = [str(record["epoch"]), *(_number(record.get(name)) for name in scores)]
        cells += [f"{1000 * record['seconds per iteration']:.2f}", f"{record['peak memory'] / 2**20:.0f}"]
        if columns != self._columns:
            self._columns = columns
            self._widths = [max(len(_short(name)), 7 if i else 5) for i, name in enumerate(columns)]
            self.say("  ".join(_short(name).rjust(w) for name, w in zip(columns, self._widths, strict=True)))
        self.say("  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)))


def _short(name: str) -> str:
    return name.replace("validation", "val.")


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) and 1e-3 <= abs(value) < 1e4 else f"{value:.4g}" if isinstance(
        value, (int, float)) else "-"  # fmt: skip
