"""`fit` and `evaluate`: the training loop one would otherwise write by hand, and no more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.nn.modes import in_mode
from wayfare.train.callbacks import Callback, ClipGradients, Schedule
from wayfare.train.checks import (
    check_belonging,
    check_callbacks,
    check_data,
    check_loss,
    check_model,
    check_run,
    check_schedules,
)
from wayfare.train.history import FACTS, History, as_line
from wayfare.train.memory import peak_memory
from wayfare.train.screen import Screen
from wayfare.train.step import Meter, Result, Step, first_batches, named_metrics, number_of_batches, plain_step
from wayfare.train.strategy import OneProcess, same_file, strategy_of

__all__ = ["Run", "evaluate", "fit"]

_USED_UP = ("An iterator is used up after one epoch: give a list or a loader, and check that it is not empty "
            "(drop_last with few examples makes it so).")  # fmt: skip


class Run:
    """A run in progress, as callbacks see it."""

    def __init__(self, model: Any, optimizer: Any, history: History, epochs: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self.history = history
        self.epochs = epochs
        self.epoch = 0  # the epoch that is running, counted from 1
        self.steps = 0  # steps of the optimiser so far, in this process
        self.loss = float("nan")  # of the last batch

    def stop(self, reason: str) -> None:
        """End the run after this epoch."""
        self.history.stopped = reason

    def score_name(self, name: str | None = None) -> str:
        """The score that is watched: the one named, else the validation loss, else the loss."""
        record = self.history[-1]
        if name is None:
            return "validation loss" if "validation loss" in record else "loss"
        if name not in record:
            raise ArgumentError(f"fit: there is no score {name!r} to watch",
                                fix=f"This run records {', '.join(self.history.scores())}.")  # fmt: skip
        return name

    def score(self, name: str | None = None) -> float:
        """The value of that score in the last epoch."""
        chosen = self.score_name(name)
        value = self.history[-1][chosen]
        if isinstance(value, list):
            raise ArgumentError(f"fit: {chosen!r} is several numbers, which cannot be watched",
                                fix="Name a score of one number.")  # fmt: skip
        return float(value)


def fit(
    model: Any, data: Iterable[Any], *, optimizer: Any, loss: Callable[[Any, Any], wf.Tensor] | None = None,
    epochs: int = 1, validation: Iterable[Any] | None = None, metrics: Mapping[str, Any] | Sequence[Any] = (),
    step: Step | None = None, scheduler: Any = None, clip: float | None = None, callbacks: Sequence[Callback] = (),
    checkpoint: str | os.PathLike[str] | wf.Checkpoint | None = None, resume: bool = False,
    log: str | os.PathLike[str] | None = None, dry_run: bool = False, overfit: int | None = None, progress: bool = True,
    strategy: str | None = None,
) -> History:  # fmt: skip
    """Train a model on batches for some epochs, and return what each epoch measured.

    `data` and `validation` are loaders, or anything that gives batches each time it is gone through. A batch is
    `(input, …, target)`; the model is called with the inputs, and `loss(output, target)` is what falls. For anything
    else give `step(model, batch)`, which returns the loss, or `(loss, output, target)` so that metrics can be kept.

    `clip` is the largest total norm of the gradients. `checkpoint` names a folder to save to after each epoch, and
    with `resume` the run goes on from what is there. `log` is a file of JSON lines. `dry_run` tries one batch of each
    kind and changes nothing; `overfit=N` trains on the first N batches only. Ctrl-C ends the run and returns what there
    is.

    With `strategy="ddp"`, called on every rank of a run that `wayfare launch` has started, the ranks train one model:
    each takes its part of the batches, scores are those of all, and rank 0 prints and saves. `"zero"` also splits the
    optimiser's state over the ranks.
    """
    callbacks = list(callbacks) if isinstance(callbacks, Iterable) else callbacks
    check_model(model)
    check_data("data", data)
    if validation is not None:
        check_data("validation", validation)
    check_loss(loss)
    check_run(optimizer, epochs, scheduler)
    check_callbacks(callbacks)
    if step is None:
        check_belonging(model, optimizer)
    take_step = step if step is not None else plain_step(loss)
    meters = named_metrics(metrics)
    if overfit is not None:
        data, validation = first_batches(data, overfit), None
    history = History()
    way = strategy_of(strategy, model, optimizer)
    data, validation = way.part(data), None if validation is None else way.part(validation)
    run = Run(model, way.optimizer, history, epochs)
    screen = Screen(progress and way.is_first)
    log = log if way.is_first else None
    if dry_run:
        return _try_out(run, way, data, validation, take_step, meters, screen)
    around = [*([ClipGradients(norm=clip)] if clip is not None else []), *callbacks]
    if scheduler is not None:
        around.append(scheduler if isinstance(scheduler, Schedule) else Schedule(scheduler))
    check_schedules(optimizer, around)
    saver = _Saver(checkpoint, run, way, data, optimizer, around) if checkpoint is not None else None
    if resume:
        if saver is None:
            raise ArgumentError("fit: resume needs to know from where", fix="Name the folder: checkpoint='run'.")
        saver.restore(screen)
        if log is not None:
            history.save(log)
    else:
        if saver is not None:
            saver.check_free()
        if log is not None:
            Path(log).write_text("", encoding="utf-8")
    for callback in around:
        callback.on_start(run)
    try:
        for epoch in range(len(history) + 1, epochs + 1):
            if history.stopped:
                break
            run.epoch = epoch
            record = _train_epoch(run, way, data, take_step, meters, around, screen)
            if validation is not None:
                scores = _scores(model, way, validation, take_step, meters,
                                 f"fit: the validation data gave no batch in epoch {epoch}")  # fmt: skip
                record |= {f"validation {name}": value for name, value in scores.items()}
            history.append(_in_order(record))
            screen.row(history[-1], history.scores())
            for callback in around:
                callback.after_epoch(run)
            if log is not None:
                with open(log, "a", encoding="utf-8") as file:
                    file.write(as_line(history[-1]))
            if saver is not None:
                saver.save()
        if history.stopped:
            screen.say(f"Stopped after epoch {len(history)}: {history.stopped}.")
    except KeyboardInterrupt:
        history.interrupted = True
        run.optimizer.zero_grad()
        onward = f"; resume=True goes on after epoch {len(history)}" if saver is not None and history else ""
        screen.say(f"Interrupted in epoch {run.epoch}, which is left out of the history{onward}.")
    for callback in around:
        callback.on_end(run)
    return history


def _in_order(record: dict[str, Any]) -> dict[str, Any]:
    """Scores before facts, so that a record reads from left to right."""
    epoch, *facts = FACTS
    scores = [name for name in record if name not in FACTS]
    return {name: record[name] for name in (epoch, *scores, *facts)}


def _train_epoch(
    run: Run, way: OneProcess, data: Iterable[Any], take_step: Step, metrics: dict[str, Any], around: list[Callback],
    screen: Screen,
) -> dict[str, Any]:  # fmt: skip
    """Go through the batches once."""
    meter = Meter(metrics)
    way.model.train()
    way.begin(data, run.epoch)
    start = time.perf_counter()

    def update() -> None:
        for callback in around:
            callback.before_update(run)
        run.optimizer.step()
        run.steps += 1
        for callback in around:
            callback.after_step(run)

    with way.training(update), screen.epoch(run.epoch, run.epochs, number_of_batches(data)):
        for batch in data:
            run.optimizer.zero_grad()
            result = Result.of(take_step(way.model, batch), batch)
            run.loss = result.value
            if not result.finite:
                raise _lost(run, meter.batches)
            result.loss.backward()
            update()
            meter.add(result)
            screen.step(meter.batches, run.loss)
    seconds = time.perf_counter() - start
    meter.merge(way)
    if not meter.batches:
        raise OperationError(f"fit: the data gave no batch in epoch {run.epoch}",
                             fix=_USED_UP)  # fmt: skip
    return {
        "epoch": run.epoch, **meter.scores(), "iterations": meter.batches, "seconds": seconds,
        "seconds per iteration": seconds / meter.batches, "peak memory": peak_memory(),
        "learning rate": float(run.optimizer.param_groups[0]["lr"]),
    }  # fmt: skip


def _lost(run: Run, batches: int) -> OperationError:
    """The error for a loss that is NaN or infinite; it holds the history so far."""
    rate = float(run.optimizer.param_groups[0]["lr"])
    error = OperationError(
        f"fit: the loss is {run.loss} in epoch {run.epoch}, batch {batches + 1} (learning rate {rate:g})",
        fix="Lower the learning rate, clip the gradients (clip=1.0), or find the op that made it with "
        "wf.autograd.detect_anomaly().",
    )
    error.history = run.history  # type: ignore[attr-defined]
    return error


def evaluate(
    model: Any, data: Iterable[Any], *, loss: Callable[[Any, Any], wf.Tensor] | None = None,
    metrics: Mapping[str, Any] | Sequence[Any] = (), step: Step | None = None,
) -> dict[str, float]:  # fmt: skip
    """The loss (if one is given) and metrics of a model on batches, in eval mode and without recording.

    The model's mode is put back after.
    """
    check_model(model)
    check_data("data", data)
    check_loss(loss)
    meters = named_metrics(metrics)
    if step is None and loss is None and not meters:
        raise ArgumentError("evaluate: needs a loss, metrics, or a step of your own",
                            fix="Give loss=wf.nn.functional.cross_entropy, for instance.")  # fmt: skip
    take_step = step or plain_step(loss or (lambda output, target: wf.zeros(())))
    scores = _scores(model, OneProcess(model, None), data, take_step, meters, "evaluate: the data gave no batch")
    if step is None and loss is None:
        del scores["loss"]
    return scores


def _scores(
    model: Any, way: OneProcess, data: Iterable[Any], take_step: Step, metrics: dict[str, Any], nothing: str
) -> dict[str, Any]:  # fmt: skip
    """What `evaluate` measures; `nothing` says that there was no batch."""
    meter = Meter(metrics)
    with in_mode(model, False), wf.no_grad():
        for batch in data:
            meter.add(Result.of(take_step(model, batch), batch))
    meter.merge(way)
    if not meter.batches:
        raise OperationError(nothing, fix=_USED_UP)
    return meter.scores()


def _try_out(
    run: Run, way: OneProcess, data: Iterable[Any], validation: Iterable[Any] | None, take_step: Step,
    metrics: dict[str, Any], screen: Screen,
) -> History:  # fmt: skip
    """One batch forward and backward, one batch of validation; then everything is as it was."""
    model = run.model
    state = {key: value.clone() for key, value in model.state_dict().items() if isinstance(value, wf.Tensor)}
    gradients = [(p, p.grad) for p in model.parameters()]
    loader_state = data.state_dict() if hasattr(data, "state_dict") else None
    record: dict[str, Any] = {"epoch": 0}
    try:
        with in_mode(model, True), wf.random.fork_rng():
            for p, _ in gradients:
                p.grad = None
            (batch,) = first_batches(data, 1)
            result = Result.of(take_step(way.model, batch), batch)
            result.loss.backward()
            meter = Meter(metrics)
            meter.add(result)
            record |= meter.scores()
            idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
            norm = float(wf.nn.utils.get_total_norm([p.grad for p, _ in gradients if p.grad is not None]).item())
            if validation is not None:
                scores = evaluate(model, first_batches(validation, 1), step=take_step, metrics=metrics)
                record |= {f"validation {name}": value for name, value in scores.items()}
    finally:
        model.load_state_dict(state, strict=False)
        for p, grad in gradients:
            p.grad = grad
        if loader_state is not None:
            data.load_state_dict(loader_state)  # type: ignore[attr-defined]
    shown = ", ".join(f"{name} {value:.4g}" for name, value in record.items() if name != "epoch")
    screen.say(f"Dry run: {shown}; the gradients' norm is {norm:.4g}. Nothing was changed.")
    if idle:
        screen.say(f"No gradient reaches {', '.join(idle)}.")
    return History([record])


class _Saver:
    """Saves a run after each epoch, and restores it."""

    def __init__(
        self, checkpoint: Any, run: Run, way: OneProcess, data: Any, optimizer: Any, around: list[Callback]
    ) -> None:
        self._run = run
        self._way = way
        self._around = around
        if isinstance(checkpoint, (str, os.PathLike)):
            parts = {"model": run.model, "optimizer": run.optimizer}
            parts |= {f"scheduler{i or ''}": c.scheduler for i, c in enumerate(
                c for c in around if isinstance(c, Schedule))}  # fmt: skip
            if (loader := way.place_in(data)) is not None:
                parts["loader"] = loader
            checkpoint = wf.Checkpoint(checkpoint, **parts)
        if not isinstance(checkpoint, wf.Checkpoint):
            raise ArgumentTypeError("fit: checkpoint must be a folder or a wf.Checkpoint, not a "
                                    f"{type(checkpoint).__name__}")  # fmt: skip
        # With "zero", the user's own optimiser has only this rank's part of the state.
        self._checkpoint = checkpoint.with_part(optimizer, run.optimizer)

    def _callbacks(self) -> dict[str, Any]:
        """The callbacks that have a state, by class; a second one of a class has its number behind."""
        named: dict[str, Any] = {}
        for callback in self._around:
            if hasattr(callback, "state_dict"):
                name = type(callback).__name__
                same = sum(known.split()[0] == name for known in named)
                named[f"{name} {same}" if same else name] = callback
        return named

    def save(self) -> None:
        """Write everything to a file: once, whatever the number of ranks."""
        self._way.gather_state(everywhere=False)
        if not self._way.is_first:
            return
        states = {name: callback.state_dict() for name, callback in self._callbacks().items()}
        scores = {name: value for name, value in self._run.history[-1].items() if name != "epoch"}
        self._checkpoint.save(epoch=self._run.epoch, history=self._run.history.state_dict(), callbacks=states, **scores)

    def check_free(self) -> None:
        """Refuse to mix two runs in one folder, where the new one would push out the files of the old."""
        if self._checkpoint.latest is not None:
            raise ArgumentError(f"fit: the folder {str(self._checkpoint.folder)!r} holds the checkpoints of a run",
                                fix="resume=True goes on with it; for a new run name another folder.")  # fmt: skip

    def restore(self, screen: Screen) -> None:
        """Go on from the last file, if there is one."""
        same_file(self._way, self._checkpoint.latest)
        if self._checkpoint.latest is None:
            screen.say(f"Nothing to resume in {str(self._checkpoint.folder)!r}: starting afresh.")
            return
        self._way.gather_state(everywhere=True)  # a restore takes note of the state before it
        extra = self._checkpoint.restore()
        if "history" not in extra or "callbacks" not in extra:
            raise OperationError(f"fit: {self._checkpoint.latest} was not saved by fit, so there is no run to go on "
                                 "with", fix="Restore it yourself, and call fit without resume.")  # fmt: skip
        self._run.history.load_state_dict(extra["history"])
        for name, callback in self._callbacks().items():
            if name in extra["callbacks"]:
                callback.load_state_dict(extra["callbacks"][name])
        done, wanted = len(self._run.history), self._run.epochs
        screen.say(f"Resumed after epoch {done}" + (f": nothing is left to do of {wanted}." if done >= wanted else "."))
