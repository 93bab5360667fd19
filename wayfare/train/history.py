"""History: what each epoch of a run measured, as data, as JSON lines, as a table and as curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wayfare.core.errors import ArgumentError
from wayfare.io.replace import replace_text
from wayfare.see.pages.charts import curves_picture
from wayfare.see.report.observations import Observation, observe
from wayfare.see.tensorboard import SummaryWriter
from wayfare.train.plot import text_plot

__all__ = ["History"]

# What an epoch records beside its scores.
FACTS = ("epoch", "iterations", "seconds", "seconds per iteration", "peak memory", "learning rate")
# What `wf.train.GradientFlow` adds: the mean norm of each parameter's gradient.
GRADIENTS = "gradient norms"

# JSON has no words for these numbers.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def as_line(record: dict[str, Any]) -> str:
    """A record as a line of JSON; NaN and infinities are written as words."""
    return json.dumps(_as_words(record), ensure_ascii=False) + "\n"


def _as_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_words(inside) for name, inside in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_numbers(inside) for name, inside in value.items()}
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


class History:
    """The records of a run, one dictionary an epoch: `history["loss"]` is a list, `history[-1]` the last record.

    `interrupted` says that Ctrl-C ended the run, `stopped` why a callback did.
    """

    def __init__(self, records: list[dict[str, Any]] | None = None) -> None:
        self.records: list[dict[str, Any]] = list(records or [])
        self.interrupted = False
        self.stopped = ""

    def append(self, record: dict[str, Any]) -> None:
        """Add the record of an epoch."""
        self.records.append(record)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if not any(key in record for record in self.records):
                known = ", ".join(self.names()) or "nothing yet"
                raise KeyError(f"the history has no {key!r}: it holds {known}")
            return [record.get(key, float("nan")) for record in self.records]
        return self.records[key]

    def names(self) -> list[str]:
        """Everything that some epoch recorded, in the order in which it first appeared."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    def scores(self) -> list[str]:
        """The losses and metrics among the names."""
        return [name for name in self.names() if name not in FACTS and name != GRADIENTS]

    def best(self, name: str, mode: str = "min") -> dict[str, Any]:
        """The record of the epoch with the lowest (`"min"`) or highest (`"max"`) value of a score."""
        if mode not in ("min", "max"):
            raise ArgumentError(f"History.best: mode must be 'min' or 'max', not {mode!r}")
        found = [record for record in self.records if name in record]
        if not found:
            raise KeyError(f"the history has no {name!r}")
        _check_numbers(name, [record[name] for record in found], "no epoch is the best")
        numbers = [record for record in found if not math.isnan(record[name])]
        return (min if mode == "min" else max)(numbers or found, key=lambda record: record[name])

    def observations(self) -> list[Observation]:
        """What the numbers say in words: still falling, a plateau, overfitting, diverging, not a number."""
        return observe(self.records, self.stopped, self.interrupted)

    def gradient_norms(self) -> dict[str, list[float]]:
        """The mean norm of each parameter's gradient, epoch after epoch, if `wf.train.GradientFlow` was there.

        It is 0 in an epoch in which a parameter had none.
        """
        names = dict.fromkeys(name for record in self.records for name in record.get(GRADIENTS, ()))
        return {name: [record.get(GRADIENTS, {}).get(name, 0.0) for record in self.records] for name in names}

    # -- files ----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write JSON lines: one record a line."""
        target = Path(path)
        replace_text(str(target), map(as_line, self.records))
        return target

    def to_tensorboard(self, folder: str | os.PathLike[str]) -> Path:
        """Write the scores, the learning rate and the gradients' norms as a TensorBoard event file in a folder."""
        with SummaryWriter(folder) as writer:
            for number, record in enumerate(self.records, start=1):
                write_record(writer, record, number)
            return writer.path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what `save` (or `fit(log=…)`) wrote; a last line cut short by a crash is left out."""
        records = []
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):
                    break
                raise ArgumentError(f"History.load: line {number} of {path} is not JSON",
                                    fix="Give a file that History.save or fit(log=…) wrote.") from None  # fmt: skip
            if not isinstance(record, dict):
                raise ArgumentError(f"History.load: line {number} of {path} is not a record")
            records.append(_as_numbers(record))
        return cls(records)

    def state_dict(self) -> dict[str, Any]:
        """The records, for a checkpoint."""
        return {"records": [dict(record) for record in self.records]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the records of a checkpoint."""
        self.records = [dict(record) for record in state["records"]]

    # -- looking --------------------------------------------------------------------------------------------------

    def curves(self, *names: str) -> dict[str, list[float]]:
        """The values of some scores by name; without names, of the losses."""
        chosen = names or tuple(name for name in self.scores() if name.endswith("loss"))
        found = {name: self[name] for name in chosen}
        for name, values in found.items():
            _check_numbers(name, values, "there is no curve")
        return found

    def plot(self, *names: str, width: int = 72, height: int = 12) -> str:
        """Curves drawn with characters, to print; without names, of the losses."""
        return text_plot(self.curves(*names), width, height)

    def save_plot(self, path: str | os.PathLike[str], *names: str, title: str = "") -> Path:
        """Curves as a picture: an .svg, or a .png if matplotlib is installed."""
        target = Path(path)
        curves = self.curves(*names)
        if target.suffix == ".svg":
            replace_text(str(target), [curves_picture(curves, title)])
        elif target.suffix == ".png":
            _png(target, curves, title)
        else:
            raise ArgumentError(f"save_plot: cannot draw a {target.suffix or 'file without an ending'}",
                                fix="Name a file that ends in .svg or .png.")  # fmt: skip
        return target

    def table(self) -> str:
        """The records as lines under a heading."""
        columns = ["epoch", *self.scores(), *(name for name in ("seconds per iteration",) if name in self.names())]
        rows = [columns] + [[_shown(record.get(name)) for name in columns] for record in self.records]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    def __repr__(self) -> str:
        if not self.records:
            return "History(no epoch yet)"
        last = ", ".join(f"{name} {_shown(self.records[-1].get(name))}" for name in self.scores())
        return f"History({len(self)} epochs; last: {last})"


def write_record(writer: SummaryWriter, record: dict[str, Any], number: int) -> None:
    """Write one epoch's record to TensorBoard; scores of several numbers get a curve for each."""
    step = int(record.get("epoch", number))
    for name, value in record.items():
        if name == GRADIENTS:
            for parameter, norm in value.items():
                writer.add_scalar(f"gradient norm/{parameter}", norm, step)
        elif isinstance(value, (int, float)) and name not in ("epoch", "iterations"):
            # "validation loss" and "loss" belong on one page of TensorBoard, under one heading.
            held_out, score = name.startswith("validation "), name.removeprefix("validation ")
            heading = "run" if name in FACTS else score
            writer.add_scalar(f"{heading}/{'validation' if held_out else 'training' if heading == score else name}",
                              value, step)  # fmt: skip
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, (int, float)):
                    writer.add_scalar(f"{name}/{index}", one, step)


def _check_numbers(name: str, values: list[Any], outcome: str) -> None:
    if any(isinstance(value, list) for value in values):
        raise ArgumentError(f"History: {name!r} is several numbers, so {outcome}", fix="Name a score of one number.")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _png(target: Path, curves: dict[str, list[float]], title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError("save_plot: a .png is drawn by matplotlib, which is not installed",
                            fix="pip install 'wayfare[plot]', or save an .svg.") from None  # fmt: skip
    figure = Figure(figsize=(7.2, 4.0), dpi=150)
    axes = figure.add_subplot()
    for name, values in curves.items():
        axes.plot(range(1, len(values) + 1), values, marker=".", label=name)
    axes.set_xlabel("epoch")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(target)
