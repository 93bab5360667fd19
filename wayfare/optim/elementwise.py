"""Optimisers whose step is a formula of one element: all parameters of a group change in one native call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import wayfare as wf
from wayfare.api.fused_update import FusedUpdate
from wayfare.core.device import BACKENDS
from wayfare.core.errors import ArgumentError, ArgumentTypeError, OperationError
from wayfare.core.mode import UNUSUAL, executor
from wayfare.optim.optimizer import Group, Optimizer
from wayfare.optim.replay import group_step, parts_of

__all__ = [
    "ElementwiseOptimizer", "Formula", "check_betas", "check_flags", "check_number", "check_range", "decay_of",
    "decayed", "number", "update_of",
]  # fmt: skip

State = dict[str, Any]
Lists = list[list[Any]]
# The update that a step runs, its numbers, and the counters by name as they are after the step.
Formula = tuple[FusedUpdate, dict[str, float], State]


class ElementwiseOptimizer(Optimizer):
    """The base of optimisers that keep tensors like the parameter (`state_names`) and the number of the step.

    A subclass says how one call changes parameters that are at the same step (`formula`), and, if the mathematics allow
    it for these options, how it changes some rows of one parameter (`takes_rows`, `update_rows`).
    """

    replays = True

    # Numbers of a state; parameters that differ in them are updated apart.
    counters: tuple[str, ...] = ("step",)
    # Options that must be numbers of at least 0.
    ranges: tuple[str, ...] = ("lr", "eps", "weight_decay")

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense."""
        name = type(self).__name__
        check_range(name, options, *self.ranges)
        check_betas(name, options)
        check_flags(name, options)

    # The tensors of a state, where they do not depend on the options.
    states: tuple[str, ...] = ()

    def state_names(self, group: Group) -> tuple[str, ...]:
        """The tensors of a state."""
        return self.states

    def new_state(self, name: str, p: wf.Tensor, group: Group) -> Any:
        """What a tensor or counter of a state is before the first step."""
        return 0 if name == "step" else wf.zeros_like(p)

    def counts(self, group: Group, states: list[State]) -> list[list[Any]]:
        """The values of the counters for these states; KeyError where a state has not begun."""
        return [[s[name] for s in states] for name in self.counters]

    def formula(self, group: Group, *counts: Any) -> Formula:
        """What one step does with parameters, gradients and the states by name; gets the counters before it.

        Looks at the options and the counters only, so that it can be asked without taking the step.
        """
        raise NotImplementedError

    def formula_lists(self, lists: Lists) -> Lists:
        """The lists that the formula takes, made of parameters, gradients and the states by name."""
        return lists

    def update(self, group: Group, lists: Lists, *counts: Any) -> State:
        """Change parameters and states: `lists` are parameters, gradients and the states by name.

        Gets the counters before the step and returns them, by name, as they are after it.
        """
        run, numbers, after = self.formula(group, *counts)
        run(*lists, **numbers)
        return after

    def takes_rows(self, group: Group) -> bool:
        """Can a gradient of some rows be used as it is, with these options?"""
        return False

    def update_rows(self, group: Group, rows: wf.Tensor, tensors: list[Any], *counts: Any) -> State:
        """As `update`, for rows of one parameter: `tensors` are it, the gradient of the rows, and its states."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every parameter that has a gradient; returns what `closure` returned, if one is given."""
        loss = None
        if closure is not None:
            check_closure(type(self).__name__, closure)
            with wf.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: Group) -> None:
        all_states, takes_rows = self.state, self.takes_rows(group)
        params, grads, states = [], [], []
        for p in group["params"]:
            if takes_rows:
                found = p.row_grad()
                if found is not None:
                    self._step_rows(group, p, *found)
                    continue
            grad = p.grad
            if grad is not None:
                params.append(p)
                grads.append(grad)
                states.append(all_states[p])
        if BACKENDS and len({p.device for p in params}) > 1:
            for places in parts_of([[str(p.device) for p in params]]).values():
                self._step_listed(group, *[[c[i] for i in places] for c in (params, grads, states)])
        elif params:
            self._step_listed(group, params, grads, states)

    def _step_listed(self, group: Group, params: list[wf.Tensor], grads: list[Any], states: list[State]) -> None:
        """The step of parameters that have a gradient and are on one device."""
        if UNUSUAL:
            executor().call_out(
                lambda: group_step(self, group, params, grads, states),
                lambda: self._step_all(group, params, grads, states),
            )
        else:
            self._step_all(group, params, grads, states)

    def _step_all(self, group: Group, params: list[wf.Tensor], grads: list[Any], states: list[State]) -> None:
        """The same, where nobody records it."""
        lists, counts = self.gathered(group, params, grads, states)
        if all([c.count(c[0]) == len(c) for c in counts]):
            after = self.update(group, lists, *[c[0] for c in counts])
            for state in states:
                state.update(after)
            return
        for key, places in parts_of(counts).items():
            after = self.update(group, [[c[i] for i in places] for c in lists], *key)
            for i in places:
                states[i].update(after)

    def gathered(
        self, group: Group, params: list[wf.Tensor], grads: list[Any], states: list[State]
    ) -> tuple[Lists, list[list[Any]]]:
        """The lists of `update` and the counters of each parameter; states that have not begun begin."""
        names = self.state_names(group)
        try:
            counts = self.counts(group, states)
        except KeyError:
            self._begin_all(group, params, states)
            counts = self.counts(group, states)
        try:
            lists = [params, grads, *[[s[name] for s in states] for name in names]]
        except KeyError:
            self._begin_all(group, params, states)
            lists = [params, grads, *[[s[name] for s in states] for name in names]]
        return lists, counts

    def _step_rows(self, group: Group, p: wf.Tensor, rows: wf.Tensor, values: wf.Tensor) -> None:
        state = self.state[p]
        self._begin(group, p, state)
        tensors = [p, values, *[state[name] for name in self.state_names(group)]]
        counts = self.counts(group, [state])
        state.update(self.update_rows(group, rows, tensors, *[c[0] for c in counts]))

    def _begin_all(self, group: Group, params: list[wf.Tensor], states: list[State]) -> None:
        for p, state in zip(params, states, strict=True):
            self._begin(group, p, state)

    def _begin(self, group: Group, p: wf.Tensor, state: State) -> None:
        """Make what a state lacks: all of it at first, a part of it when an option was switched on later."""
        for name in (*self.counters, *self.state_names(group)):
            if state.get(name) is None:
                state[name] = self.new_state(name, p, group)

    def state_problems(self, p: wf.Tensor, group: Group, state: State) -> list[str]:
        """Names that are missing and tensors of another shape than the parameter's."""
        wanted = self.state_names(group)
        missing = [name for name in (*self.counters, *wanted) if name not in state] if state else []
        said = [f"it has no {', '.join(missing)}"] if missing else []
        for name in wanted:
            value = state.get(name)
            if value is not None and tuple(value.shape) != tuple(p.shape):
                said.append(f"its {name} has shape {list(value.shape)}")
        return said


def update_of(formula: Callable[..., Any], states: tuple[str, ...], numbers: str) -> FusedUpdate:
    """An update of `formula(m, p, g, *states, **numbers)`, which writes p and the states. So one formula serves for
    several sets of states. `numbers` are names with spaces between."""
    kind = inspect.Parameter
    tensors = [kind(name, kind.POSITIONAL_ONLY) for name in ("m", "p", "g", *states)]
    signature = inspect.Signature([*tensors, *(kind(name, kind.KEYWORD_ONLY) for name in numbers.split())])
    formula.__signature__ = signature  # type: ignore[attr-defined]
    return wf.fused_update(writes=("p", *states))(formula)


def check_closure(optimizer: str, closure: Any) -> None:
    """What is given to `step` is called, so it must be a function."""
    if not callable(closure):
        raise ArgumentTypeError(f"{optimizer}.step: closure must be a function, not {type(closure).__name__}",
                                fix="Give a function that computes the loss and calls backward, or nothing."
                                )  # fmt: skip


def decay_of(group: Group, rate: float) -> tuple[str, float]:
    """How the weight decay of a group goes into a step, and the number for it.

    "none"; "gradient": so much of the parameter is added to the gradient; "weight": the parameter is multiplied by it.
    """
    decay = number(group["weight_decay"])
    if decay == 0:
        return "none", 0.0
    return ("weight", 1.0 - rate * decay) if group["decoupled_weight_decay"] else ("gradient", decay)


def decayed(m: Any, p: Any, g: Any, decay: str, weight_decay: Any) -> tuple[Any, Any]:
    """Parameter and gradient of one element after weight decay of a kind of `decay_of`.

    A term that is absent is left out, not multiplied by 0, which would turn an infinity into NaN.
    """
    if decay == "gradient":
        return p, m.fma(p, weight_decay, g)
    return (p * weight_decay if decay == "weight" else p), g


def number(value: Any) -> float:
    """An option as a number: a learning rate may be a 0-dim tensor."""
    return value if value.__class__ is float else float(value)


def check_range(optimizer: str, options: dict[str, Any], *names: str, **limits: Any) -> None:
    """Options that must be numbers within limits; see `check_number`."""
    for name in names:
        if name in options:
            check_number(optimizer, name, options[name], **limits)


def check_number(
    optimizer: str, name: str, value: Any, *, strict: bool = False, below: float | None = None,
    most: float | None = None,
) -> None:  # fmt: skip
    """A number of at least 0 (or more than 0, if `strict`), and less than `below` or at most `most`."""
    if isinstance(value, wf.Tensor) and value.numel() != 1:
        raise ArgumentError(f"{optimizer}: {name} must be one number, it is a tensor of {value.spec}")
    try:
        if isinstance(value, str):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{optimizer}: {name} must be a number, not {type(value).__name__}") from None
    fits = found > 0 if strict else found >= 0
    limit = "more than 0" if strict else "at least 0"
    if below is not None:
        fits, limit = fits and found < below, f"{limit} and less than {below:g}"
    if most is not None:
        fits, limit = fits and found <= most, f"{limit} and at most {most:g}"
    if not fits:
        raise ArgumentError(f"{optimizer}: {name} must be {limit}, it is {found:g}")


def check_betas(optimizer: str, options: dict[str, Any]) -> None:
    """Two numbers from 0 to less than 1."""
    betas = options.get("betas", (0.0, 0.0))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ArgumentError(f"{optimizer}: betas must be two numbers, it is {betas!r}", fix="Write (0.9, 0.999).")
    for place, beta in enumerate(betas):
        check_number(optimizer, f"betas[{place}]", beta, below=1.0)


def check_flags(optimizer: str, options: dict[str, Any]) -> None:
    """Options about how to compute: every step here is fused and none is recorded."""
    if options.get("differentiable"):
        raise OperationError(f"{optimizer}: differentiable=True is not supported, a step is never recorded",
                             fix="To differentiate through updates write them in tensor operations.")  # fmt: skip
    if options.get("fused") and options.get("foreach"):
        raise OperationError(f"{optimizer}: fused and foreach cannot both be True", fix="Leave both out.")
