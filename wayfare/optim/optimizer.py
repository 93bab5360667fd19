"""`Optimizer`: the base of all optimisers: parameter groups with their options, states, hooks.

What is saved and loaded is in `wayfare.optim.saved`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError, ArgumentTypeError, MissingEntryError, OperationError
from wayfare.core.mode import UNUSUAL, executor, watcher
from wayfare.core.node import Handle
from wayfare.optim.noticed import Noticed, notice
from wayfare.optim.saved import load_state, saved_state

__all__ = ["Optimizer", "Params", "options_in", "required"]

Params = Iterable[Any]
Group = dict[str, Any]


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


# The default of an option that every group must give itself.
required: Any = _Required()


def options_in(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options among the arguments of an optimiser's `__init__`, given as its `locals()`."""
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` with the hooks of the optimiser before and after it."""

    @functools.wraps(step)
    def call(self: Optimizer, *args: Any, **options: Any) -> Any:
        if UNUSUAL:
            self._check_recorded()
            looking = watcher()
            if looking is not None:
                looking.starts(self)
                try:
                    return with_hooks(self, *args, **options)
                finally:
                    looking.ended(self)
        if not self._before and not self._after:
            return step(self, *args, **options)
        return with_hooks(self, *args, **options)

    def with_hooks(self: Optimizer, *args: Any, **options: Any) -> Any:
        if self._in_step:  # a step that calls the step of its base class
            return step(self, *args, **options)
        self._in_step = True
        try:
            given: tuple[Any, ...] = (self, *args)
            for hook in list(self._before.values()):
                changed = hook(self, given, options)
                if changed is not None:
                    given, options = _changed(changed)
            made = step(*given, **options)
            for hook in list(self._after.values()):
                hook(self, given, options)
        finally:
            self._in_step = False
        return made

    return call


def _changed(result: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return tuple(result[0]), result[1]
    raise OperationError(f"step: a hook before the step must return None or (args, kwargs), not {result!r}")


class Optimizer:
    """Changes parameters by their gradients: the base of SGD, Adam, …

    `params` are tensors, (name, tensor) pairs, or groups: dictionaries with "params" and options of their own, for
    which `defaults` stands in. `state[p]` is what is remembered of a parameter. A subclass writes `step`.
    """

    defaults: Any = Noticed()
    state: Any = Noticed()
    param_groups: Any = Noticed()

    # Does a step inside a recorded call tell the recorder what Python has to do at every replay?
    replays: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = _with_hooks(cls.__dict__["step"])  # type: ignore[method-assign]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if UNUSUAL:
            executor().not_replayable(f"{self._name} is made inside the function, so each call has its own")
        self.defaults = defaults
        self.state = defaultdict(dict)
        self.param_groups = []
        self._before: dict[int, Callable[..., Any]] = {}
        self._after: dict[int, Callable[..., Any]] = {}
        self._in_step = False
        self.check_options({k: v for k, v in defaults.items() if v is not required})
        for group in self._groups_of(params):
            self.add_param_group(group)

    def _check_recorded(self) -> None:
        """Say where a step does more in Python than a replay would know of."""
        if not self.replays:
            executor().not_replayable(f"{self._name}.step is Python of its own, which reads options and counts steps")
        if any(not getattr(hook, "once", False) for hook in (*self._before.values(), *self._after.values())):
            executor().not_replayable(f"{self._name} has hooks for its step")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _groups_of(self, params: Any) -> list[Any]:
        if isinstance(params, wf.Tensor):
            raise ArgumentTypeError(f"{self._name}: takes a list of parameters, not a tensor", fix="Give [parameter].")
        if isinstance(params, dict):
            group = "params" in params  # otherwise it is likely what state_dict() gave, or tensors by name
            wanted = "groups" if group else "parameters"
            raise ArgumentTypeError(f"{self._name}: takes a list of {wanted}, not one dict",
                                    fix="Give [group]." if group else "Give model.parameters().")  # fmt: skip
        self._check_iterable(params)
        given = params if isinstance(params, set) else list(params)
        if not given:
            raise ArgumentError(f"{self._name}: got an empty list of parameters",
                                fix="A generator such as model.parameters() can be used once only, call it again or "
                                    "make a list of it; or the model has none: layers in a plain list are not seen, "
                                    "use nn.ModuleList.")  # fmt: skip
        if isinstance(given, list) and isinstance(given[0], dict):
            return given
        return [{"params": given}]

    def _check_iterable(self, params: Any) -> None:
        """Refuse what gives no parameters: a model, whose entries if it has any are layers, or no iterable at all."""
        if callable(getattr(params, "parameters", None)) and not isinstance(params, wf.nn.ParameterList):
            raise ArgumentTypeError(f"{self._name}: takes parameters, not a {type(params).__name__}",
                                    fix="Give model.parameters().")  # fmt: skip
        if not isinstance(params, Iterable):
            raise ArgumentTypeError(f"{self._name}: takes an iterable of parameters, not a {type(params).__name__}",
                                    fix="Give model.parameters().")  # fmt: skip

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise if an option's value makes no sense. Called with the defaults and with every group."""

    def add_param_group(self, param_group: Group) -> None:
        """Take over another group: {"params": tensors or (name, tensor) pairs, option: value, …}."""
        if UNUSUAL:
            notice(self, "param_groups")
        if not isinstance(param_group, dict):
            raise ArgumentTypeError(f"{self._name}: a parameter group is a dict, not a {type(param_group).__name__}",
                                    fix='Write {"params": […], "lr": …}.')  # fmt: skip
        if "params" not in param_group:
            raise MissingEntryError(f'{self._name}: a parameter group has no "params"',
                                    fix='Write {"params": […], "lr": …}.')  # fmt: skip
        names, params = self._taken_apart(param_group["params"])
        options = {**self.defaults, **{k: v for k, v in param_group.items() if k != "params"}}
        missing = [name for name, value in options.items() if value is required]
        if missing:
            raise ArgumentError(f"{self._name}: a parameter group gives no {', '.join(missing)}",
                                fix="It has no default, so every group must give it.")  # fmt: skip
        self._check_parameters(params)
        for group in self.param_groups:
            if ("param_names" in group) != bool(names):
                raise ArgumentError(f"{self._name}: some parameter groups have names and others not",
                                    fix="Give named_parameters() or parameters() for all.")  # fmt: skip
        self.check_options(options)
        param_group["params"] = params
        if names:
            param_group["param_names"] = names
        for name, value in options.items():
            param_group.setdefault(name, value)
        self.param_groups.append(param_group)

    def _taken_apart(self, params: Any) -> tuple[list[str], list[Any]]:
        if isinstance(params, wf.Tensor):
            return [], [params]
        if isinstance(params, set):
            raise ArgumentTypeError(f"{self._name}: a set has no order, so states could not be saved by number",
                                    fix="Give a list.")  # fmt: skip
        self._check_iterable(params)
        given = list(params)
        named = [isinstance(entry, tuple) for entry in given]
        if not any(named):
            return [], given
        if not all(named) or any(len(entry) != 2 for entry in given):
            raise ArgumentError(f"{self._name}: some parameters have names and others not",
                                fix="Give named_parameters() or parameters(), not a mixture.")  # fmt: skip
        return [name for name, _ in given], [p for _, p in given]

    def _check_parameters(self, params: list[Any]) -> None:
        for p in params:
            if not isinstance(p, wf.Tensor):
                raise ArgumentTypeError(f"{self._name}: optimises tensors, one of the parameters is a "
                                        f"{type(p).__name__}", fix="Give model.parameters().")  # fmt: skip
            if not (p.is_leaf or p.retains_grad):
                raise ArgumentError(f"{self._name}: a parameter of {p.spec} was computed from other tensors, so it is "
                                    "no leaf and gets no gradient",
                                    fix="Give the leaf, or make one with .detach().requires_grad_().")  # fmt: skip
        seen = {id(p) for group in self.param_groups for p in group["params"]}
        for p in params:
            if id(p) in seen:
                raise ArgumentError(f"{self._name}: a parameter of {p.spec} was given more than once",
                                    fix="Give each parameter once, in one group.")  # fmt: skip
            seen.add(id(p))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; with `set_to_none=False` fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                    continue
                grad = p.grad
                if grad is not None:
                    p.grad = grad = grad.detach()
                    grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every parameter by its gradient.

        `closure` computes the loss and the gradients again; its loss is returned.
        """
        raise NotImplementedError(f"{self._name} has no step()")

    # -- hooks ------------------------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(optimizer, args, kwargs)` before every step; it may return other (args, kwargs).

        `args` begins with the optimiser itself.
        """
        return Handle(self._before, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(optimizer, args, kwargs)` after every step."""
        return Handle(self._after, hook)

    # -- saving -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """States and options, with numbers in the place of parameters: {"state": {0: {…}}, "param_groups": […]}.

        Tensors in it are the optimiser's own: copy them if it is to step on.
        """
        if UNUSUAL:
            notice(self, "state_dict")
        return saved_state(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict()` gave (tensors, NumPy arrays or numbers); all of it or, with an error that
        names everything that does not fit, nothing. Values are copied."""
        if UNUSUAL:
            notice(self, "load_state_dict")
        load_state(self, state_dict)

    def state_problems(self, p: Any, group: Group, state: dict[str, Any]) -> list[str]:
        """What is wrong with a state (of names and values) that is about to be loaded for `p`."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._before, self._after, self._in_step = {}, {}, False

    def __repr__(self) -> str:
        lines = [f"{self._name} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {name}: {group[name]}" for name in sorted(group) if name != "params"]
        return "\n".join(lines) + "\n)"
