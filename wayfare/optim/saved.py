"""An optimiser's states and options as plain dictionaries with numbers for parameters, and back.

The layout and the names are PyTorch's, so that a state saved there can be loaded here. Counters such as `step` are
Python numbers while they are in use and 0-dim tensors when saved.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

import wayfare as wf
from wayfare.core.dlpack import without_history
from wayfare.core.errors import ArgumentError, ArgumentTypeError, MissingEntryError

if TYPE_CHECKING:
    from wayfare.optim.optimizer import Optimizer

__all__ = ["COUNTERS", "load_state", "saved_state"]

# Numbers of a state that are tensors in a state_dict: how to read them, and what they are saved as.
COUNTERS: dict[str, Any] = {"step": (int, wf.float32), "mu_product": (float, wf.float64)}

# By what a state shows whose it is: the options that not every class has, and the values that every state has. The
# last four are PyTorch's only.
MARKS: dict[str, tuple[set[str], set[str]]] = {
    "Adadelta": ({"rho", "eps", "weight_decay"}, {"square_avg", "acc_delta"}),
    "Adagrad": ({"lr_decay", "eps", "weight_decay", "initial_accumulator_value"}, {"step", "sum"}),
    "Adam": ({"betas", "eps", "weight_decay", "amsgrad"}, {"step", "exp_avg", "exp_avg_sq"}),
    "AdamW": ({"betas", "eps", "weight_decay", "amsgrad"}, {"step", "exp_avg", "exp_avg_sq"}),
    "Adamax": ({"betas", "eps", "weight_decay"}, {"step", "exp_avg", "exp_inf"}),
    "LBFGS": ({"max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn"},
              {"func_evals", "n_iter"}),
    "NAdam": ({"betas", "eps", "weight_decay", "momentum_decay"}, {"step", "exp_avg", "exp_avg_sq", "mu_product"}),
    "RAdam": ({"betas", "eps", "weight_decay"}, {"step", "exp_avg", "exp_avg_sq"}),
    "RMSprop": ({"momentum", "alpha", "eps", "centered", "weight_decay"}, {"step", "square_avg"}),
    "SGD": ({"momentum", "dampening", "weight_decay", "nesterov"}, {"momentum_buffer"}),
    "SparseAdam": ({"betas", "eps"}, {"step", "exp_avg", "exp_avg_sq"}),
    "ASGD": ({"lambd", "alpha", "t0", "weight_decay"}, {"step", "eta", "mu", "ax"}),
    "Adafactor": ({"beta2_decay", "eps", "d", "weight_decay"}, {"step", "row_var", "col_var"}),
    "Muon": ({"weight_decay", "momentum", "nesterov", "ns_coefficients", "eps"}, {"momentum_buffer"}),
    "Rprop": ({"etas", "step_sizes"}, {"step", "prev", "step_size"}),
}  # fmt: skip
_OPTIONS = {name for options, _ in MARKS.values() for name in options}


def saved_state(optimizer: Optimizer) -> dict[str, Any]:
    """What `Optimizer.state_dict` returns."""
    numbers: dict[Any, int] = {}
    groups = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            numbers.setdefault(p, len(numbers))
        options = {name: value for name, value in group.items() if name != "params"}
        groups.append({**options, "params": [numbers[p] for p in group["params"]]})
    state = {
        numbers.get(p, p): {name: _saved(name, value) for name, value in kept.items()}
        for p, kept in optimizer.state.items()
        if kept
    }
    return {"state": state, "param_groups": groups}


def _saved(name: str, value: Any) -> Any:
    if name in COUNTERS and isinstance(value, (int, float)):
        return wf.tensor(float(value), dtype=COUNTERS[name][1])
    return value


def load_state(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """What `Optimizer.load_state_dict` does."""
    name = type(optimizer).__name__
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        kind = MissingEntryError if isinstance(state_dict, dict) else ArgumentTypeError
        raise kind(f'{name}.load_state_dict: takes a dict with "state" and "param_groups"',
                   fix="Give what state_dict() returned.")  # fmt: skip
    groups, problems = _loaded_groups(optimizer, state_dict["param_groups"])
    foreign = _foreign_names(optimizer, state_dict)
    if foreign:
        problems.insert(0, f"this is the state of another optimiser (it has {', '.join(foreign)})")
    state: dict[Any, dict[str, Any]] = {}
    if not problems:
        state = _loaded_states(optimizer, groups, state_dict, problems)
    if problems:
        raise ArgumentError(f"{name}.load_state_dict: it does not fit this optimiser, nothing was loaded: "
                            + "; ".join(problems),
                            fix="Build the optimiser of the same class, model and groups as when it was saved."
                            )  # fmt: skip
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, loaded in zip(optimizer.param_groups, groups, strict=True):
        group.update(loaded)


def _foreign_names(optimizer: Optimizer, state_dict: dict[str, Any]) -> list[str]:
    """Names that show that an optimiser of another class was saved; none if it may have been this one.

    A strange name alone shows nothing: schedulers, users and other versions add options of theirs. But then all of
    the class's own are there too, and together they are not what another class has.
    """
    found: dict[str, None] = {}
    own = _OPTIONS & optimizer.defaults.keys()
    given = {name for group in optimizer.param_groups for name in group}
    for group in state_dict["param_groups"]:
        named = _OPTIONS & group.keys()
        strange = named - own - given
        if strange and (own - named or any(named == options for options, _ in MARKS.values())):
            found.update(dict.fromkeys(name for name in group if name in strange))
    kind = next((c.__name__ for c in type(optimizer).__mro__ if c.__module__.startswith("wayfare.optim.")), "")
    _, own = MARKS.get(kind, (set(), set()))
    for state in state_dict["state"].values() if own else ():
        kept = {name for name, value in state.items() if value is not None} if isinstance(state, dict) else set()
        if not (own - {"step"}) & kept and any(values <= kept for _, values in MARKS.values()):
            found.update(dict.fromkeys(name for name in state if name in kept - own))
    return list(found)


def _loaded_groups(optimizer: Optimizer, saved: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The groups' options as they will be, and what does not fit."""
    ours = optimizer.param_groups
    if len(saved) != len(ours):
        return [], [f"it has {len(saved)} parameter groups and the optimiser {len(ours)}"]
    groups, problems = [], []
    for number, (group, loaded) in enumerate(zip(ours, saved, strict=True)):
        if len(loaded["params"]) != len(group["params"]):
            problems.append(f"group {number} has {len(loaded['params'])} parameters and the optimiser's "
                            f"{len(group['params'])}")  # fmt: skip
            continue
        options = {**group, **{name: _option(group.get(name), value) for name, value in loaded.items()}}
        options["params"] = group["params"]
        if "param_names" in group:
            options["param_names"] = group["param_names"]
        groups.append(options)
        try:
            optimizer.check_options({k: v for k, v in options.items() if k not in ("params", "param_names")})
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(f"group {number}: {getattr(error, 'sentence', error)}")
    return groups, problems


def _option(old: Any, value: Any) -> Any:
    """A saved option; formats without tuples and plain numbers give lists and 0-dim arrays for them."""
    if isinstance(old, tuple) and isinstance(value, (list, np.ndarray)):
        return tuple(_option(None, v) for v in value)
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return value.item()
    return copy.deepcopy(value)


def _loaded_states(
    optimizer: Optimizer, groups: list[dict[str, Any]], state_dict: dict[str, Any], problems: list[str]
) -> dict[Any, dict[str, Any]]:
    owners: dict[Any, tuple[Any, dict[str, Any]]] = {}
    for group, saved in zip(groups, state_dict["param_groups"], strict=True):
        owners.update({n: (p, group) for n, p in zip(saved["params"], group["params"], strict=True)})
    out: dict[Any, dict[str, Any]] = {}
    for key, kept in state_dict["state"].items():
        number = int(key) if isinstance(key, str) and key.isdigit() else key
        if number not in owners:
            if isinstance(number, int):
                problems.append(f"it has a state for parameter {number}, which is in no group")
            out[key] = kept
            continue
        p, group = owners[number]
        # None stands for a velocity that has not begun.
        state = {name: _loaded(name, value, p) for name, value in kept.items() if value is not None}
        for said in optimizer.state_problems(p, group, state):
            problems.append(f"parameter {number} {list(p.shape)}: {said}")
        out[p] = state
    return out


def _loaded(name: str, value: Any, p: Any) -> Any:
    """A copy of a saved value, on the device of its parameter, and of its dtype where it is a tensor of floats."""
    if name in COUNTERS:
        return COUNTERS[name][0](float(value))
    if isinstance(value, wf.Tensor):
        copied = value.detach().clone().to(p.device)
        return copied.to(p.dtype) if copied.dtype.is_floating_point else copied
    if isinstance(value, (list, tuple)):
        return type(value)(_loaded("", entry, p) for entry in value)
    if isinstance(value, dict):
        return {k: _loaded(str(k), entry, p) for k, entry in value.items()}
    if hasattr(value, "__array__"):
        return _loaded(name, wf.tensor(without_history(value)), p)
    return copy.deepcopy(value)
