"""Runs one database entry in PyTorch and in the module under test, sample by sample."""

from __future__ import annotations

import random
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.oracle import policies
from tests.oracle.compare import Tolerance, array_difference, as_array, difference, tensors_in
from tests.oracle.convert import OutOfScope, Thawed, freeze, from_array, thaw
from tests.oracle.distribution import check_draws
from tests.oracle.entries import Entry, find, find_in_place, find_method
from tests.oracle.rounding import only_rounding

# An entry of which fewer samples could be checked does not count as agreeing.
NEEDED_SHARE = 0.9

# A method shares its function's body, so a few samples show that it is there and bound rightly.
_METHOD_SAMPLES = 5


@dataclass
class Outcome:
    """What came of one entry with one dtype."""

    entry: str
    dtype: str
    samples: int = 0
    checked: int = 0
    gradients: int = 0
    # Samples that miss the tolerance and agree within float32's own rounding (see rounding.py).
    rounded: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether every checked sample agrees, and enough of them could be checked."""
        enough = self.checked > 0 and self.checked >= NEEDED_SHARE * self.samples
        return enough and not self.failures

    @property
    def verdict(self) -> str:
        """One line for a failure report; empty where the entry agrees."""
        if self.agrees:
            return ""
        if self.failures:
            return f"{len(self.failures)} of {self.checked} samples: {self.failures[0]}"
        if not self.samples:
            return "no samples"
        reasons = ", ".join(f"{reason} ({count})" for reason, count in self.skipped.most_common())
        return f"only {self.checked} of {self.samples} samples could be checked: {reasons}"


@dataclass(frozen=True)
class FrozenSample:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any]
    label: str
    broadcasts_input: bool


class _Skip(Exception):
    """A sample that cannot be compared; the message is the reason."""


def samples(entry: Entry, dtype: torch.dtype) -> Iterator[FrozenSample | str]:
    """The frozen samples of an entry, or in a sample's place the reason why it is out of scope."""
    differentiable = entry.record.supports_autograd and dtype.is_floating_point
    _seed(entry.name)
    for number, sample in enumerate(entry.record.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        try:
            args = tuple(freeze(value) for value in (sample.input, *sample.args))
            kwargs = freeze(sample.kwargs)
        except OutOfScope as out_of_scope:
            yield str(out_of_scope)
            continue
        label = f"sample {number} {summary(sample)}"
        yield FrozenSample(args, kwargs, sample.output_process_fn_grad, label, sample.broadcasts_input)


def check_entry(module: Any, entry: Entry, dtype: torch.dtype) -> Outcome:
    """Every sample of an entry: values and gradients of its function form."""
    function = find(module, entry)
    assert function is not None, f"{entry.name} is not in {module.__name__}"
    return _check_form(module, entry, dtype, function, entry.record.op)


def check_method(module: Any, entry: Entry, dtype: torch.dtype) -> Outcome | None:
    """The entry called as a method, or None where either side has no such method."""
    method = find_method(module, entry)
    if method is None or policies.is_random(entry.name, {}):
        return None
    return _check_form(module, entry, dtype, method, entry.record.method_variant, limit=_METHOD_SAMPLES)


def check_in_place(module: Any, entry: Entry, dtype: torch.dtype) -> Outcome | None:
    """The entry written into a copy of its input, or None where either side has no such method."""
    method = find_in_place(module, entry)
    if method is None or policies.is_random(entry.name, {}):
        return None
    variant = entry.record.inplace_variant

    def in_place(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return variant(x.clone(), *args, **kwargs)

    return _check_form(module, entry, dtype, method, in_place, in_place_form=True)


def _check_form(
    module: Any,
    entry: Entry,
    dtype: torch.dtype,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    limit: int | None = None,
    in_place_form: bool = False,
) -> Outcome:
    tolerance = policies.tolerance_for(entry.name, str(dtype).removeprefix("torch."))
    by_value = entry.name not in policies.UNDEFINED_VALUES
    up_to_sign = entry.name in policies.FIXED_UP_TO_SIGN

    def strictly(sample: FrozenSample, seed: int) -> bool:
        if in_place_form and (sample.broadcasts_input or not hasattr(sample.args[0], "array")):
            raise _Skip("its result does not fit into its input")
        if policies.is_random(entry.name, sample.kwargs):
            # Not the record's own call: it seeds anew each time and would give one draw over and over.
            return check_draws(module, function, find(torch, entry), sample)
        theirs = thaw(torch, sample.args, sample.kwargs)
        try:
            expected = reference(*theirs.args, **theirs.kwargs)
        except Exception as error:  # whatever PyTorch refuses here, there is nothing to compare with
            raise _Skip(f"PyTorch itself raises {type(error).__name__}") from error
        ours = thaw(module, sample.args, sample.kwargs)
        actual = function(*ours.args, **ours.kwargs)
        _demand(difference(actual, expected, values=False))
        if by_value and not up_to_sign:
            _demand_values(difference(actual, expected, tolerance))
        actual, expected = sample.process(actual), sample.process(expected)
        if up_to_sign:
            _demand_values(difference(actual, expected, tolerance))
        if not theirs.leaves or not by_value:
            return False
        return _compare_gradients(module, (actual, ours), (expected, theirs), tolerance, seed)

    def compare(sample: FrozenSample, seed: int) -> _Agreement:
        try:
            return _Agreement(strictly(sample, seed))
        except _ValuesDiffer:
            judged = dtype in (torch.float32, torch.bfloat16) and by_value
            if not (judged and only_rounding(module, function, reference, sample, seed)):
                raise
            return _Agreement(bool(entry.record.supports_autograd), rounded=True)

    return _run(entry, dtype, compare, limit=limit)


@dataclass(frozen=True)
class _Agreement:
    """How a sample agrees: with gradients compared or not, and perhaps only but for rounding."""

    with_gradient: bool
    rounded: bool = False


class _Disagreement(Exception):
    """The two sides differ; the message says how."""


class _ValuesDiffer(_Disagreement):
    """All agrees but the values, so that rounding may be the reason."""


def _demand_values(found: str | None) -> None:
    if found is not None:
        raise _ValuesDiffer(found)


def _demand(found: str | None) -> None:
    if found is not None:
        raise _Disagreement(found)


def _compare_gradients(
    module: Any, ours: tuple[Any, Thawed], theirs: tuple[Any, Thawed], tolerance: Tolerance | None, seed: int
) -> bool:
    """Gradients of a random combination of the outputs; False where PyTorch has none."""
    our_outputs, their_outputs = list(tensors_in(ours[0])), list(tensors_in(theirs[0]))
    ours_differ = [tensor for tensor in our_outputs if tensor.requires_grad]
    theirs_differ = [tensor for tensor in their_outputs if tensor.requires_grad]
    generator = np.random.default_rng(seed)
    seeds = [generator.standard_normal(tuple(tensor.shape)).astype(as_array(tensor).dtype) for tensor in theirs_differ]
    try:
        expected_gradients = _gradients(torch, theirs_differ, theirs[1].leaves, seeds) if theirs_differ else None
    except (RuntimeError, NotImplementedError):
        return False  # PyTorch marks the output as differentiable and then has no rule for it
    for place, (actual, expected) in enumerate(zip(our_outputs, their_outputs, strict=True)):
        if actual.requires_grad != expected.requires_grad:
            _demand(f"output {place}: requires_grad is {actual.requires_grad}, not {expected.requires_grad}")
    if expected_gradients is None:
        return False
    actual_gradients = _gradients(module, ours_differ, ours[1].leaves, seeds)
    for place, (actual, expected) in enumerate(zip(actual_gradients, expected_gradients, strict=True)):
        if actual is None and expected is None:
            continue
        leaf = as_array(theirs[1].leaves[place])
        # No gradient and a gradient of zeros say the same.
        actual = np.zeros_like(leaf) if actual is None else as_array(actual)
        expected = np.zeros_like(leaf) if expected is None else as_array(expected)
        _demand(array_difference(actual, expected, values=False, where=f"gradient {place}"))
        _demand_values(array_difference(actual, expected, tolerance, where=f"gradient {place}"))
    return True


def _gradients(module: Any, outputs: list[Any], leaves: list[Any], seeds: list[np.ndarray]) -> Any:
    weights = [from_array(module, np.array(seed)) for seed in seeds]
    return module.autograd.grad(outputs, leaves, weights, allow_unused=True)


def _run(
    entry: Entry,
    dtype: torch.dtype,
    compare: Callable[[FrozenSample, int], _Agreement],
    *,
    limit: int | None = None,
) -> Outcome:
    outcome = Outcome(entry.name, str(dtype).removeprefix("torch."))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(entry, dtype):
            if limit is not None and outcome.samples >= limit:
                break
            outcome.samples += 1
            if isinstance(sample, str):
                outcome.skipped[sample] += 1
                continue
            try:
                agreement = compare(sample, outcome.samples)
            except _Skip as skip:
                outcome.skipped[str(skip)] += 1
                continue
            except _Disagreement as disagreement:
                outcome.failures.append(f"{sample.label}: {disagreement}")
            except Exception as error:  # any exception of the module under test is a finding
                outcome.failures.append(f"{sample.label}: {describe(error)}")
            else:
                outcome.gradients += agreement.with_gradient
                outcome.rounded += agreement.rounded
            outcome.checked += 1
    return outcome


def describe(error: Exception) -> str:
    """The error in a line, with the innermost place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rsplit('/', 2)[-1]}:{frames[-1].lineno})" if frames else ""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}{place}"


def _seed(name: str) -> None:
    """Makes the database draw the same samples in every run and every process."""
    number = zlib.crc32(name.encode())
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def summary(sample: Any) -> str:
    """The sample's arguments in a few words: shapes for tensors, values for the rest."""
    parts = [_brief(value) for value in (sample.input, *sample.args)]
    parts += [f"{key}={_brief(value)}" for key, value in sample.kwargs.items()]
    return "(" + ", ".join(parts)[:200] + ")"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return "[" + ", ".join(_brief(item) for item in value) + "]"
    return str(value)
