"""What is given to `fit` and `evaluate`, checked before anything runs: a mistake is answered with a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError
from wayfare.train.callbacks import Callback

__all__ = [
    "check_belonging", "check_callbacks", "check_data", "check_loss", "check_made", "check_model", "check_run",
    "check_schedules",
]  # fmt: skip


def check_made(what: str, value: Any) -> None:
    """An object is wanted, and its class is easily given instead."""
    if isinstance(value, type):
        raise ArgumentTypeError(f"fit: the {what} is the class {value.__name__}", fix=f"Make one: {value.__name__}(…).")


def check_model(model: Any) -> None:
    """A model can be told to train and has parameters."""
    check_made("model", model)
    if not isinstance(model, wf.nn.Module):
        raise ArgumentTypeError(f"fit: the model must be an nn.Module, not {type(model).__name__}",
                                fix="Give the module; what is done around its call goes into step=.")  # fmt: skip


def check_data(what: str, data: Any) -> None:
    """Batches come from something to go through."""
    check_made(what, data)
    by_number = isinstance(data, wf.data.Dataset) and not isinstance(data, wf.data.IterableDataset)
    if by_number or (hasattr(data, "__getitem__") and not isinstance(data, Iterable)):
        # Going through it would give examples, not batches, and never end where no index is refused.
        raise ArgumentTypeError(f"fit: the {what} must be batches, and a {type(data).__name__} has examples by number",
                                fix="Give wf.data.DataLoader(dataset, batch_size=32).")  # fmt: skip
    if not isinstance(data, Iterable):
        raise ArgumentTypeError(f"fit: the {what} must be something to go through, not {type(data).__name__}",
                                fix="Give a wf.data.DataLoader, or a list of batches.")  # fmt: skip


def check_loss(loss: Any) -> None:
    """A loss is called with output and target."""
    check_made("loss", loss)
    if loss is not None and not callable(loss):
        raise ArgumentTypeError(f"fit: loss must be a function of output and target, not {type(loss).__name__}",
                                fix="Give wf.nn.functional.cross_entropy, for instance.")  # fmt: skip


def check_run(optimizer: Any, epochs: Any, scheduler: Any) -> None:
    """What drives the run."""
    if not isinstance(epochs, int):
        raise ArgumentTypeError(f"fit: epochs must be an int, not {epochs!r}")
    if epochs < 1:
        raise ArgumentError(f"fit: epochs must be at least 1, it is {epochs}")
    check_made("optimizer", optimizer)
    if not (hasattr(optimizer, "zero_grad") and hasattr(optimizer, "step")):
        raise ArgumentTypeError(f"fit: the optimizer must be one of wf.optim, not {type(optimizer).__name__}",
                                fix="Give wf.optim.Adam(model.parameters()), for instance.")  # fmt: skip
    if isinstance(optimizer, wf.optim.LBFGS):
        raise ArgumentError("fit: LBFGS computes the loss several times in a step, which fit does not",
                            fix="Write the loop: optimizer.step(closure).")  # fmt: skip
    check_made("scheduler", scheduler)
    if scheduler is not None and not (isinstance(scheduler, Callback) or hasattr(scheduler, "step")):
        raise ArgumentTypeError(f"fit: the scheduler must have step(), as those of wf.optim.lr_scheduler, not "
                                f"{type(scheduler).__name__}",
                                fix="For several give callbacks=[Schedule(first), Schedule(second)].")  # fmt: skip


def check_schedules(optimizer: Any, callbacks: Iterable[Any]) -> None:
    """A schedule of another optimiser would change that one's rate."""
    for callback in callbacks:
        scheduler = getattr(callback, "scheduler", None)
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ArgumentError(f"fit: the {type(scheduler).__name__} is for another optimizer than the one given",
                                fix="Make it of the optimizer that fit is given.")  # fmt: skip


def check_belonging(model: Any, optimizer: Any) -> None:
    """An optimiser made for another copy of the model would train that one, and nothing would be seen to change."""
    held = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    if held and not any(id(p) in held for p in model.parameters()):
        raise ArgumentError("fit: the optimizer has none of the model's parameters",
                            fix="Make it of model.parameters() after the model is made or copied.")  # fmt: skip


def check_callbacks(callbacks: Any) -> None:
    """A list of callbacks."""
    if not isinstance(callbacks, Iterable):
        raise ArgumentTypeError(f"fit: callbacks must be a list, not {type(callbacks).__name__}",
                                fix="Write callbacks=[callback].")  # fmt: skip
    for callback in callbacks:
        check_made("callback", callback)
        if not isinstance(callback, Callback):
            raise ArgumentTypeError(f"fit: a callback must be a wf.train.Callback, not {type(callback).__name__}",
                                    fix="Make a class of it that is derived from Callback.")  # fmt: skip
