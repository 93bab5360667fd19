"""What may happen around the steps of a run: stopping early, keeping the best, clipping, following a schedule, and
keeping what a report shows."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.see.tensorboard import SummaryWriter
from wayfare.train.history import GRADIENTS, write_record

if TYPE_CHECKING:
    from wayfare.train.loop import Run

__all__ = ["Callback", "ClipGradients", "EarlyStopping", "GradientFlow", "KeepBest", "Schedule", "TensorBoard"]


class Callback:
    """Base of callbacks; each method is called with the `Run`, which has `model`, `optimizer`, `epoch`, `history`, …"""

    def on_start(self, run: Run) -> None:
        """Before the first epoch."""

    def before_update(self, run: Run) -> None:
        """After backward, before the optimiser's step."""

    def after_step(self, run: Run) -> None:
        """After each step of the optimiser."""

    def after_epoch(self, run: Run) -> None:
        """After each epoch; `run.history[-1]` is its record."""

    def on_end(self, run: Run) -> None:
        """After the last epoch, also when the run was stopped or interrupted."""


class ClipGradients(Callback):
    """Scale the gradients to a total `norm` at most, or cut each at ±`value`."""

    def __init__(self, norm: float | None = None, value: float | None = None) -> None:
        if (norm is None) == (value is None):
            raise ArgumentError("ClipGradients: takes a norm or a value", fix="Write ClipGradients(norm=1.0).")
        self.norm = norm
        self.value = value

    def before_update(self, run: Run) -> None:
        """Clip."""
        if self.norm is not None:
            wf.nn.utils.clip_grad_norm_(run.model.parameters(), self.norm)
        elif self.value is not None:
            wf.nn.utils.clip_grad_value_(run.model.parameters(), self.value)


class Schedule(Callback):
    """Step a learning-rate scheduler after every epoch, or (`every="step"`) after every step.

    One that watches a score, `ReduceLROnPlateau`, is given the value of `monitor`.
    """

    def __init__(self, scheduler: Any, every: str = "epoch", monitor: str | None = None) -> None:
        if every not in ("epoch", "step"):
            raise ArgumentError(f"Schedule: every must be 'epoch' or 'step', not {every!r}")
        if every == "step" and isinstance(scheduler, wf.optim.lr_scheduler.ReduceLROnPlateau):
            raise ArgumentError("Schedule: ReduceLROnPlateau watches a score, which is there after each epoch only",
                                fix="Say every='epoch'.")  # fmt: skip
        self.scheduler = scheduler
        self.every = every
        self.monitor = monitor

    def after_step(self, run: Run) -> None:
        """Step the scheduler, if it goes by steps."""
        if self.every == "step":
            self.scheduler.step()

    def after_epoch(self, run: Run) -> None:
        """Step the scheduler, if it goes by epochs."""
        if self.every == "epoch":
            if isinstance(self.scheduler, wf.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(run.score(self.monitor))
            else:
                self.scheduler.step()


class _Best(Callback):
    """Watches a score: which epoch was the best so far."""

    def __init__(self, monitor: str | None, mode: str | None, min_delta: float = 0.0) -> None:
        if mode not in (None, "min", "max"):
            raise ArgumentError(f"{type(self).__name__}: mode must be 'min' or 'max', not {mode!r}")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = min_delta
        self.best: float | None = None
        self.best_epoch = 0

    def _improved(self, run: Run) -> bool:
        name = run.score_name(self.monitor)
        value = run.score(self.monitor)
        mode = self.mode or ("min" if name.endswith(("loss", "error")) else "max")
        if math.isnan(value):  # never the best, or nothing after it could be better
            return False
        gain = 0.0 if self.best is None else self.best - value if mode == "min" else value - self.best
        if self.best is None or gain > self.min_delta:
            self.best, self.best_epoch = value, run.epoch
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]


class EarlyStopping(_Best):
    """Stop when a score (the validation loss unless said) has not improved by `min_delta` for `patience` epochs.

    `mode` is "min" or "max"; left out, losses and errors are to fall and all else is to rise.
    """

    def __init__(
        self, monitor: str | None = None, patience: int = 5, min_delta: float = 0.0, mode: str | None = None
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if patience < 1:
            raise ArgumentError(f"EarlyStopping: patience must be at least 1, it is {patience}")
        self.patience = patience

    def on_start(self, run: Run) -> None:
        """A run that was stopped before it is resumed is over; where nothing was watched yet, patience begins."""
        if self.best is None:
            self.best_epoch = len(run.history)
        elif len(run.history):
            self._stop_after(len(run.history), run)

    def after_epoch(self, run: Run) -> None:
        """Stop, if it is time."""
        if not self._improved(run):
            self._stop_after(run.epoch, run)

    def _stop_after(self, epoch: int, run: Run) -> None:
        if epoch - self.best_epoch >= self.patience:
            name = run.score_name(self.monitor)
            run.stop(f"{name} was never a number" if self.best is None else
                     f"{name} has not improved since epoch {self.best_epoch} ({self.best:.4g})")  # fmt: skip


class KeepBest(_Best):
    """Save the model's state to a file whenever a score is the best so far; `restore` loads it back at the end."""

    def __init__(
        self, path: str | os.PathLike[str], monitor: str | None = None, mode: str | None = None, restore: bool = False
    ) -> None:
        super().__init__(monitor, mode)
        self.path = Path(path)
        self.restore = restore

    def on_start(self, run: Run) -> None:
        """Make the folder: better now than after an epoch."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def after_epoch(self, run: Run) -> None:
        """Save, if it is the best."""
        if self._improved(run):
            wf.save(run.model.state_dict(), self.path)

    def on_end(self, run: Run) -> None:
        """Load the best state back, if asked for."""
        if self.restore and self.best is not None:
            run.model.load_state_dict(wf.load(self.path))


class GradientFlow(Callback):
    """Keep the norm of every parameter's gradient, as the mean of an epoch: `history.gradient_norms()`, for a report.

    `every` is how many steps lie between two that are looked at. Before clipping or after it is a matter of the order
    of the callbacks; `fit(clip=…)` comes first.
    """

    def __init__(self, every: int = 1) -> None:
        if not isinstance(every, int) or every < 1:
            raise ArgumentError(f"GradientFlow: every must be a whole number from 1, it is {every!r}")
        self.every = every
        self._sums: dict[str, float] = {}
        self._looked = 0

    def before_update(self, run: Run) -> None:
        """Look at the gradients."""
        if run.steps % self.every:
            return
        self._looked += 1
        for name, parameter in run.model.named_parameters():
            if parameter.grad is not None:
                self._sums[name] = self._sums.get(name, 0.0) + float(parameter.grad.norm().item())
            elif parameter.requires_grad:
                self._sums.setdefault(name, 0.0)

    def after_epoch(self, run: Run) -> None:
        """Put the means into the record of the epoch."""
        if self._looked:
            run.history[-1][GRADIENTS] = {name: total / self._looked for name, total in self._sums.items()}
        self._sums, self._looked = {}, 0


class TensorBoard(Callback):
    """Write each epoch's scores to a TensorBoard event file in a folder, and each step's loss (`every` so many)."""

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        if not isinstance(every, int) or every < 1:
            raise ArgumentError(f"TensorBoard: every must be a whole number from 1, it is {every!r}")
        self.folder = Path(folder)
        self.every = every
        self._writer: SummaryWriter | None = None

    def on_start(self, run: Run) -> None:
        """Open the file: better now than after an epoch."""
        self._writer = SummaryWriter(self.folder)

    def after_step(self, run: Run) -> None:
        """Write the loss of the batch."""
        if self._writer is not None and run.steps % self.every == 0:
            self._writer.add_scalar("loss/step", run.loss, run.steps)

    def after_epoch(self, run: Run) -> None:
        """Write the epoch's record; it is on the disk when this returns."""
        if self._writer is not None:
            write_record(self._writer, run.history[-1], run.epoch)
            self._writer.flush()

    def on_end(self, run: Run) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
