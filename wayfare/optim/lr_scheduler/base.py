"""`LRScheduler`: counts epochs, writes the learning rate of each parameter group, keeps its state as plain values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import wayfare as wf
from wayfare.core.callsite import outside_frames
from wayfare.core.errors import ArgumentError, ArgumentTypeError, MissingEntryError
from wayfare.core.mode import UNUSUAL, executor
from wayfare.optim.lr_scheduler.replay import replayed
from wayfare.optim.noticed import notice
from wayfare.optim.optimizer import Optimizer

__all__ = ["LRScheduler"]

# Marks that hold only while a step runs, and the optimizer, which has a state of its own.
_NOT_STATE = frozenset({"optimizer", "_get_lr_called_within_step", "_is_initial"})
# Keys of states written by PyTorch that say nothing a scheduler here does not know by itself.
_OF_PYTORCH = frozenset({"_get_lr_called_within_step", "_is_initial", "mode_worse", "verbose"})

# Did this optimizer step since it got its first scheduler?
_HAS_STEPPED: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()


def _watch(optimizer: Optimizer) -> None:
    """Learn of the optimizer's next step; after it the hook is gone, so training pays nothing."""
    if optimizer in _HAS_STEPPED:
        return
    _HAS_STEPPED[optimizer] = False

    def note(stepped: Optimizer, args: Any, kwargs: Any) -> None:
        _HAS_STEPPED[stepped] = True
        handle.remove()

    note.once = True  # type: ignore[attr-defined]  # gone before a recorded step could be replayed
    handle = optimizer.register_step_post_hook(note)


def check_optimizer(name: str, optimizer: Any) -> None:
    """Refuse what is not an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(f"{name}: {type(optimizer).__name__} is not an Optimizer",
                                fix="Give the optimizer first, such as wf.optim.SGD(...).")  # fmt: skip
    executor().not_replayable(f"{name} is made inside the function, so each call has its own")


def check_positive_int(name: str, what: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}: {what} must be a positive integer, it is {value!r}")


def per_group(name: str, what: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value for each parameter group, from one for all or from a list of as many."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ArgumentError(f"{name}: {what} has {len(value)} values for {groups} parameter groups",
                            fix="Give one value for all groups, or a list with one for each.")  # fmt: skip
    return list(value)


def number(value: Any) -> Any:
    """A learning rate kept in a tensor, as a number."""
    return value.item() if isinstance(value, wf.Tensor) else value


def get_lrs(optimizer: Optimizer) -> list[Any]:
    """The learning rate of each group now."""
    return [number(group["lr"]) for group in optimizer.param_groups]


def set_lr(group: dict[str, Any], lr: Any) -> None:
    """Give a group a learning rate; one kept in a tensor stays in that tensor."""
    if isinstance(group["lr"], wf.Tensor):
        with wf.no_grad():
            group["lr"].fill_(number(lr))
    else:
        group["lr"] = lr


def state_of_function(function: Any) -> dict[str, Any] | None:
    """The attributes of a callable object; a plain function or a built-in one has no state to save."""
    if isinstance(function, FunctionType) or not hasattr(function, "__dict__"):
        return None
    return dict(vars(function))


def restore_function(function: Any, state: dict[str, Any] | None) -> None:
    """Give a callable object the attributes it was saved with."""
    if state is not None:
        vars(function).update(state)


def _copied(value: Any) -> Any:
    """Copies of lists and dictionaries, so that a state does not change after it was taken."""
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


class LRScheduler:
    """Base of the schedulers: a subclass says in `get_lr()` which learning rate each group has at `self.last_epoch`.

    `get_lr` may read `self.base_lrs` (the rates at the beginning, kept as `initial_lr` in the groups) or the rates now
    in `self.optimizer.param_groups`. Making a scheduler performs its step to epoch 0. A training run that goes on
    from epoch n gives `last_epoch=n` and groups that have their `initial_lr`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = replayed(cls.__dict__["step"])  # type: ignore[method-assign]

    def __getattribute__(self, name: str) -> Any:
        if UNUSUAL and name not in ("step", "__class__"):
            notice(self, name)
        return object.__getattribute__(self, name)

    # True while `step` asks for the rates, and while the constructor makes the first step.
    _get_lr_called_within_step: bool = False
    _is_initial: bool = False

    optimizer: Optimizer
    base_lrs: list[Any]
    last_epoch: int
    _step_count: int
    _last_lr: list[Any]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        name = type(self).__name__
        check_optimizer(name, optimizer)
        for position, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", number(group["lr"]))
            elif "initial_lr" not in group:
                raise MissingEntryError(f"{name}: with last_epoch={last_epoch} it goes on from an earlier run, but "
                                        f"param_groups[{position}] has no 'initial_lr'",
                                        fix="Load the optimizer's state first, or leave last_epoch out.")  # fmt: skip
        self.optimizer = optimizer
        self.base_lrs = [number(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        _watch(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """The step to the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    # -- the rates --------------------------------------------------------------------------------------------

    def get_last_lr(self) -> list[Any]:
        """The learning rate of each group that the last step set."""
        return self._last_lr

    def get_lr(self) -> list[Any]:
        """The learning rate of each group for `self.last_epoch`; meant for `step`, users ask `get_last_lr()`."""
        if not self._get_lr_called_within_step:
            warnings.warn(f"{type(self).__name__}.get_lr() works out the next rates and is meant for step(); "
                          "use get_last_lr() to read the current ones", UserWarning, stacklevel=2)  # fmt: skip
        return self._next_lr()

    def _next_lr(self) -> list[Any]:
        """What `get_lr` of Wayfare's own schedulers hands back."""
        raise NotImplementedError(f"{type(self).__name__}: a scheduler must define get_lr().")

    def _get_closed_form_lr(self) -> list[Any]:
        """The rates for `self.last_epoch` from the rates at the beginning, where there is a formula for it."""
        return self.get_lr()

    # -- stepping ---------------------------------------------------------------------------------------------

    @replayed
    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch and set its learning rates. Call it after `optimizer.step()`."""
        if self._step_count == 1 and not _HAS_STEPPED.get(self.optimizer, True):
            warnings.warn("lr_scheduler.step() was called before optimizer.step(), so the first learning rate is never "
                          "used; call optimizer.step() first", UserWarning, stacklevel=outside_frames())  # fmt: skip
        self._step_count += 1
        if epoch is not None:
            warnings.warn("lr_scheduler.step(epoch) is deprecated; call step() once for each epoch", UserWarning,
                          stacklevel=outside_frames())  # fmt: skip
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        """Set the rates of the next epoch, or of a given one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._get_lr_called_within_step = True
        try:
            lrs = self.get_lr() if epoch is None else self._get_closed_form_lr()
        finally:
            self._get_lr_called_within_step = False
        self._write(lrs)

    def _write(self, lrs: Sequence[Any]) -> None:
        groups = self.optimizer.param_groups
        if len(lrs) != len(groups):
            raise ArgumentError(f"{type(self).__name__}: {len(lrs)} learning rates for {len(groups)} parameter groups",
                                fix="Make the scheduler after the last add_param_group().")  # fmt: skip
        for group, lr in zip(groups, lrs, strict=True):
            set_lr(group, lr)
        self._last_lr = get_lrs(self.optimizer)

    def _restart(self) -> None:
        """Start again at epoch 0, as the next in a sequence of schedulers does."""
        self._update_lr(0)

    def _undo_first_step(self) -> None:
        """Take back the step of the constructor, whose rates another scheduler will set."""
        self.last_epoch -= 1

    def _rewind(self) -> None:
        """Back to before the first step."""
        self.last_epoch = -1

    # -- saving -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, as plain values that JSON can hold."""
        return {key: _copied(value) for key, value in vars(self).items() if key not in _NOT_STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state of `state_dict()`. The rates themselves lie in the optimizer: load its state, too."""
        self._check_keys(state_dict)
        self._restore(state_dict)

    def _check_keys(self, state: dict[str, Any]) -> None:
        """Refuse the state of another kind of scheduler, and names that are none of this one's business."""
        name, own = type(self).__name__, self.state_dict().keys()
        if not isinstance(state, dict):
            raise ArgumentTypeError(f"{name}.load_state_dict: a state is a dict, not {type(state).__name__}")
        missing = sorted(own - state.keys())
        unexpected = sorted(state.keys() - own - _OF_PYTORCH)
        if missing or unexpected:
            said = [f"lacks {_listed(missing)}"] if missing else []
            said += [f"has {_listed(unexpected)}, which it does not know"] if unexpected else []
            raise ArgumentError(f"{name}.load_state_dict: the state {' and '.join(said)}",
                                fix="Load the state of a scheduler of the same class.")  # fmt: skip

    def _restore(self, state: dict[str, Any], left_out: Iterable[str] = ()) -> None:
        own = self.state_dict().keys()
        vars(self).update({key: _copied(state[key]) for key in own if key not in left_out})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def functions_per_group(name: str, lr_lambda: Any, optimizer: Optimizer) -> list[Callable[[int], float]]:
    """One function of the epoch for each group."""
    functions = per_group(name, "lr_lambda", lr_lambda, optimizer)
    for function in functions:
        if not callable(function):
            raise ArgumentTypeError(f"{name}: lr_lambda must be a function of the epoch, "
                                    f"not {type(function).__name__}")  # fmt: skip
    return functions
