"""The self-check: a call is replayed and also run as plain Python; results and side effects are compared.

The plan runs first, on copies of the memory it would write. Then Python runs for real, and its results are returned. So
a wrong plan is found without doing harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from wayfare.autograd.capture import Capture
from wayfare.autograd.engine import run as run_backward
from wayfare.compiler.check.compare import (
    ANY,
    Difference,
    Shown,
    arrays,
    coarsest_step,
    content,
    fail,
    noise_between,
    nudged,
    same,
)
from wayfare.compiler.costs import perf_counter
from wayfare.compiler.record.effects import ABSENT
from wayfare.compiler.record.recording import Output, Recording
from wayfare.compiler.replay.entry import Entry, Progress
from wayfare.compiler.structure import ITEM, put_together, take_apart
from wayfare.core.device import BACKENDS, to_host
from wayfare.core.mode import changed_mode, current
from wayfare.core.numpy_math import Array
from wayfare.core.op import raw_ops
from wayfare.core.tensor import Tensor
from wayfare.core.walk import reachable
from wayfare.core.write_clock import tick

__all__ = ["SelfCheck"]


class SelfCheck:
    """One replay on copies: its results, writes and side effects."""

    def __init__(self, entry: Entry, progress: Progress, arguments: Sequence[Tensor]) -> None:
        assert progress.end.recording is not None
        self._entry, self._progress, self._arguments = entry, progress, arguments
        self._recording: Recording = progress.end.recording
        self._drawn = [(g, g._seed, g._calls + count) for g, count in self._recording.draws if count]
        # The state after the call-outs: they have run, and are undone before Python runs.
        self._told = [(call, call.left()) for call in progress.ran]
        self._before = [effect.variable.get() for effect in self._recording.effects]
        self._gradients: list[Any] | None = None
        # Looked up now: Python may replace a `.grad` that is returned.
        self._outside = [out.source.tensor(arguments) if out.source is not None else None
                         for out in self._recording.outputs]  # fmt: skip
        try:
            self._run()
        finally:
            progress.undo()

    def _run(self) -> None:
        """Run the plan on copies of what it writes."""
        entry, block, arguments = self._entry, self._progress.end, self._arguments
        if block.plan is None:
            entry.plan(block, arguments, self._progress.there)
        assert block.plan is not None and block.fetch is not None
        block.fetch.renew(entry.moved)
        given = block.fetch.arrays(arguments, self._progress.there)
        written = {id(source) for source in block.written}
        with np.errstate(all="ignore"):
            # Where a value in between is narrow, what replaces its rounding may differ by a step of that size.
            self._step = coarsest_step([*self._recording.made, *[value for _, value in self._recording.writes]])
            other = [nudged(array, self._step) for array in given]
        places = [place for place, where in enumerate(block.inputs) if id(where) in written]
        for place in places:
            given[place] = given[place].copy(order="K")
        began = perf_counter()
        made = block.plan.run(given, self._progress.given)
        self.seconds = perf_counter() - began
        count = len(self._recording.made)
        self._made = [np.array(to_host(array)) for array in made[:count]]
        if block.gradient is not None and self._recording.seeds and not self._recording.dead:
            self._differentiate(made[:count], made[count : count + len(self._recording.saved)])
        noise = self._run_nudged(other)
        self._noise = [noise_between(a, b) for a, b in zip(self._made, noise, strict=False)]
        # For each written input: source, tensor, values, noise.
        self._written: list[tuple[Any, Tensor | None, Array, float]] = []
        for place in places:
            where: Any = block.inputs[place]
            apart = noise_between(given[place], other[place]) if noise else 0.0
            self._written.append((where, where.tensor(arguments), given[place], apart))

    def _run_nudged(self, given: list[Array]) -> list[Array]:
        """The results of the plan for inputs changed by a rounding step, to measure the noise of the results. (The
        gradient of a bias before a normalisation is only rounding errors, and Adam scales it to full steps.) Empty if
        the plan refuses these inputs."""
        assert self._progress.end.plan is not None
        try:
            return list(self._progress.end.plan.run(given, self._progress.given))
        except Exception:
            return []

    def _differentiate(self, made: Sequence[Array], saved: Sequence[Array]) -> None:
        """The gradients of the call, computed by its backward plan."""
        gradient = self._progress.end.gradient
        if gradient.plan is None or self._recording.customs:
            return  # none was needed yet; or the user's own backward would run twice
        target = self._progress.end.plan.target  # type: ignore[union-attr]
        self._seeds = [target.constant(_seed(value.shape, value.dtype)) for value in self._recording.seeds]
        node = gradient.node(self._arguments, made, saved, self._progress.given)
        needs = tuple([edge is not None for edge in node.edges])
        self._gradients = gradient._rule(raw_ops, needs, tuple(self._seeds), node._kept)

    # -- comparing

    def compare(self, python: Callable[[], Any]) -> tuple[Any, float, str]:
        """Run Python. Returns its result, the seconds it took, and the difference in words ("" if there is none).

        An error that Python raises is not caught.
        """
        start = tick()
        began = perf_counter()
        with _new_casts():
            result = python()
        seconds = perf_counter() - began
        try:
            self._compare(result, start)
        except Difference as found:
            return result, seconds, str(found)
        return result, seconds, ""

    def _compare(self, result: Any, start: int) -> None:
        recording, arguments = self._recording, self._arguments
        outputs = [self._shown(out, t) for out, t in zip(recording.outputs, self._outside, strict=True)]
        if recording.shape is ITEM:
            expected: Any = outputs[recording.results[0]]
            expected = expected.array.item() if isinstance(expected, Shown) else ANY
        else:
            expected = put_together(recording.shape, iter([outputs[i] for i in recording.results]))
        same("the result", expected, result, self._step)
        for effect, before in zip(recording.effects, self._before, strict=True):
            made = effect.value(outputs) if effect.by is None else ANY if before is ABSENT else before + effect.by
            same(effect.variable.path.called(), made, effect.variable.get(), self._step)
        for source, t, array, noise in self._written:
            if t is not None:
                arrays(f"the memory of {self._name(source)}", to_host(array), content(t), noise, self._step)
        for source, number in recording.grads:
            t = source.tensor(arguments)
            expected = None if number is None else outputs[number]
            found = None if t is None or t._grad is None else t.grad
            same(f"the .grad of {self._name(source)}", expected, found, self._step)
        for generator, seed, calls in self._drawn:
            if (generator._seed, generator._calls) != (seed, calls):
                fail("the random generator", "it gave another number of random keys")
        for call, left in self._told:
            same("the state of an optimiser or schedule", left, call.left())
        if self._gradients is not None:
            self._compare_gradients(result, start)

    def _compare_gradients(self, result: Any, start: int) -> None:
        """Compare the gradients with those of Python's results."""
        recording = self._recording
        tensors: list[Tensor] = []
        take_apart(result, tensors, [])
        made: dict[int, Tensor] = {}
        for number, result_tensor in zip(recording.results, tensors, strict=False):
            out = recording.outputs[number]
            if out.kind == "made":
                made[out.made] = result_tensor
        wanted = [number for number, needs in enumerate(recording.made_needs) if needs]
        sources = [source for source, _ in recording.input_grads]
        leaves = [source.tensor(self._arguments) for source in sources]
        if any(number not in made for number in wanted) or any(t is None or not t._requires_grad for t in leaves):
            return
        edges = [made[number]._edge for number in wanted]
        if None in edges or any(t._extras for t in leaves if t is not None) or _has_hooks(edges, start):
            return  # hooks are not called for a check
        capture = Capture([t._edge or t for t in leaves if t is not None], edges, start)
        run_backward(list(zip(edges, self._seeds, strict=True)), retain=True, create=False, capture=capture,
                     accumulate=False)  # fmt: skip
        for source, mine, t in zip(sources, self._gradients or (), leaves, strict=True):
            theirs = capture.of(t)
            same(f"the gradient of {self._name(source)}", _dense(mine), _dense(theirs), self._step)

    def _shown(self, out: Output, outside: Tensor | None) -> Any:
        """What an output of the replay would be, as far as it is known."""
        if out.kind == "outside":
            return outside
        if out.kind != "made":
            return ANY  # a view of an output that is compared itself
        attached = bool(self._recording.seeds or self._recording.dead) and self._recording.made_needs[out.made]
        return Shown(self._made[out.made], out.leaf or attached, self._noise[out.made] if self._noise else 0.0)

    def _name(self, source: Any) -> str:
        if source.kind == "argument":
            return f"argument {source.what}"
        if source.kind == "captured":
            return self._entry.guards.seen.name_of(source.what) or "a captured tensor"
        return self._name(source.what)


def _new_casts() -> AbstractContextManager[Any]:
    """Under autocast: Python casts weights itself, so that its gradients go all the way to them."""
    state = current().autocast
    return nullcontext() if state is None else changed_mode(autocast=state.fresh())


def _seed(shape: tuple[int, ...], dtype: Any) -> Array:
    """A gradient of different numbers, so that errors do not cancel out."""
    return np.cos(np.arange(int(np.prod(shape)), dtype=np.float64)).reshape(shape).astype(dtype)


def _has_hooks(edges: Sequence[Any], start: int) -> bool:
    return any(node.extras is not None for node in reachable(list(edges), start)[0])


def _dense(gradient: Any) -> Any:
    if gradient is None or isinstance(gradient, (np.ndarray, np.generic)):
        return gradient if gradient is None else np.asarray(gradient)
    if gradient.__class__ in BACKENDS:
        return to_host(gradient)
    return gradient.dense() if hasattr(gradient, "dense") else gradient._array
