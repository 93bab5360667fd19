"""`wf.profile.compare`: a user's own training step run eagerly and as a plan, side by side.

    print(wf.profile.compare(step, batches))
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

import wayfare as wf
from wayfare.compiler.function import Compiled
from wayfare.compiler.module import CompiledModule
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.core.format import bytes_text, counted, time_text
from wayfare.see.pages.markup import frame, standalone
from wayfare.see.profile import three_rows
from wayfare.see.profile.snapshot import Snapshot
from wayfare.see.profile.tables import render
from wayfare.see.profile.ways import EAGER, STATIC, TORCH, Row, Run, TorchRun, as_torch

__all__ = ["Comparison", "Row", "compare"]


@dataclass
class Comparison:
    """What `compare` found: `rows` as data, `str()` as a table for 80 columns."""

    name: str
    batches: int
    rows: list[Row]
    shapes: int = 1  # different shapes and dtypes of arguments among the batches

    def __getitem__(self, way: str) -> Row:
        for row in self.rows:
            if row.way == way:
                return row
        raise ArgumentError(f"compare: there is no row {way!r}", fix=f"There are {[row.way for row in self.rows]}.")

    def __str__(self) -> str:
        title = f"{self.name}, {counted(self.batches, 'batch')}"
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, title_justify="left")
        on_gpu = any(row.device_seconds for row in self.rows)
        memory = ("GPU", "GPU memory", "graphs") if on_gpu else ("peak memory",)
        for title in ("way", "time/iter", "× eager", *memory, "kernels", "retraces"):
            table.add_column(title, justify="left" if title == "way" else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(
                row.way, time_text(row.seconds), f"{row.seconds / self.rows[0].seconds:.2f}",
                *(_on_gpu(row) if on_gpu else [bytes_text(row.peak_bytes)]),
                f"{row.kernels:.0f}" if row.way != TORCH else "",
                str(row.retraces) if row.way == STATIC else "",
            )  # fmt: skip
        reasons = [f"{row.way} ran as plain Python, because {reason}" for row in self.rows for reason in row.python]
        return "\n".join([render(table), *reasons])

    def summary(self) -> str:
        """Training time, memory and flexibility of the ways side by side, for 80 columns."""
        return three_rows.text(self)

    def html(self) -> str:
        """The same as an HTML table, for a report."""
        return three_rows.html(self)

    def _repr_html_(self) -> str:
        return frame(standalone(self.name, self.html()), "Comparison", 420)


def compare(
    step: Callable[..., Any], batches: Iterable[Any], *, rounds: int = 5, torch_step: Callable[..., Any] | None = None,
    torch_batches: Iterable[Any] | None = None,
) -> Comparison:  # fmt: skip
    """Run a step on batches in every way there is, and measure each.

    `batches` is a list of argument tuples; another batch is the only argument. The step runs for real, many times:
    afterwards the parameters, buffers, gradients, optimisers, schedules and random numbers it can see are put back as
    they were. What else it changes (a list it appends to, a file) stays changed.

    `torch_step` is the same step written for PyTorch, with a model of its own, which stays trained; it is given copies
    of the batches, or `torch_batches`.
    """
    function, given = _plain(step), _as_tuples(batches)
    if not given:
        raise ArgumentError("compare: there are no batches", fix="Give a list of argument tuples.")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise ArgumentError(f"compare: rounds must be a whole number from 1, it is {rounds!r}")
    for_torch = _for_torch(torch_step, torch_batches, given)
    ways: dict[str, Any] = {EAGER: function, STATIC: wf.compile(function, check=False)}
    before = Snapshot(function, given)
    try:
        runs: list[Run | TorchRun] = [Run(way, called, given, before) for way, called in ways.items()]
        if for_torch is not None:
            runs.append(TorchRun(torch_step, for_torch))
        for _ in range(rounds):
            for run in runs:
                run.round()
        for run in runs:
            run.measure_memory()
        return Comparison(_name(function), len(given), [run.row() for run in runs], _shapes(given))
    finally:
        before.restore()


def _on_gpu(row: Row) -> list[str]:
    """The cells of a row that are about a GPU."""
    if row.way == TORCH:
        return ["", "", ""]
    return [time_text(row.device_seconds), bytes_text(row.device_peak_bytes), f"{row.graphs:.0f}"]


def _as_tuples(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    # A tensor is one batch, not a list of its rows.
    if isinstance(batches, (wf.Tensor, str, bytes)) or not isinstance(batches, Iterable):
        raise ArgumentTypeError(f"compare: batches must be a list of argument tuples, not {type(batches).__name__}",
                                fix="One batch is a list of one: [(x, y)].")  # fmt: skip
    return [batch if isinstance(batch, tuple) else (batch,) for batch in batches]


def _for_torch(step: Any, batches: Any, given: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
    """The batches of a step for PyTorch, if there is one."""
    if step is None:
        if batches is not None:
            raise ArgumentError("compare: torch_batches without a torch_step", fix="Give the step for PyTorch as well.")
        return None
    if not callable(step):
        raise ArgumentTypeError(f"compare: torch_step must be a function, not {type(step).__name__}")
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError("compare: there is a torch_step, and PyTorch is not installed", fix="Leave torch_step out.")
    made = as_torch(list(given)) if batches is None else _as_tuples(batches)
    if len(made) != len(given):
        raise ArgumentError(f"compare: of batches there are {len(given)}, of torch_batches {len(made)}",
                            fix="Give one for each.")  # fmt: skip
    return list(made)


def _shapes(given: Sequence[tuple[Any, ...]]) -> int:
    """How many different kinds of arguments are among the batches."""

    def kind(value: Any) -> Any:
        if isinstance(value, wf.Tensor):
            return (tuple(value.shape), value.dtype)
        if isinstance(value, dict):
            return tuple((name, kind(inside)) for name, inside in value.items())
        if isinstance(value, (list, tuple)):
            return tuple(kind(inside) for inside in value)
        return type(value)

    return len({kind(batch) for batch in given})


def _plain(step: Any) -> Callable[..., Any]:
    if isinstance(step, CompiledModule):
        return step._orig_mod
    if isinstance(step, Compiled):
        return step._function
    if not callable(step):
        raise ArgumentTypeError(f"compare: takes a function that makes a step, not {type(step).__name__}",
                                fix="Give the function, and its batches as the second argument.")  # fmt: skip
    return step  # type: ignore[no-any-return]


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
