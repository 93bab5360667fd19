"""The fast path: the replay of a call that only computes, as one generated Python function.

A call of a small model takes a few microseconds, and most of that is Python overhead: computing the signature, checking
guards, collecting weights, wrapping results. For calls without decisions, writes and random numbers this is generated
as one function: a sequence of tests and one native call. It tests everything that the slow path tests, and returns
`MISS`, with nothing changed, if a test fails. Results that require a gradient get their node as on the slow path.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.compiler.captures.reach import can_be_weak
from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.signature import is_plain
from wayfare.compiler.structure import TENSOR, put_together
from wayfare.core.spec import default_dtype
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

# Returned by a fast path for a call that it was not made for.
MISS = object()
# With more arguments and weights than this, Python overhead does not matter any more.
_MOST_TENSORS = 256
# An arena of at most this many bytes is kept from call to call.
_KEPT = 1 << 16
_PLAIN = (int, bool, str, type(None))


def fast_path(entry: Entry, key: Any, args: tuple[Any, ...], tensors: Sequence[Tensor], objects: Any) -> Any:
    """A `FastPath` that replays an entry for calls with this signature; None if the call does more than compute."""
    _, _, sharing, layouts, held = key
    block = entry.tree.root
    recording = block.recording if block is not None else None
    if (
        block is None or recording is None or block.plan is None or block.calls or block.slots
        or recording.writes or recording.grads or recording.forgotten or recording.dead or recording.effects
        or held is not None or any(recording.orders) or any(more for *_, more in layouts)
        or (recording.seeds and block.gradient is None)
        or any(count for _, count in recording.draws) or entry.grad_guards or entry.shares_memory
        or len(entry.captured) + len(tensors) > _MOST_TENSORS
        or any(out.kind != "made" or out.leaf or out.grad >= 0 for out in recording.outputs)
        or not block.plan.fresh_results or block.fetch is None or sharing is not None
        or not block.plan.fits(block.fetch.arrays(tensors, {}))
    ):  # fmt: skip
        return None
    try:
        return FastPath(entry, key, args, tensors, objects)
    except _Other:
        return None


class _Other(Exception):
    """The arguments contain something that a fast path cannot test."""


class FastPath:
    """The replay of one entry. `call(args, mode)` returns the result of the function, or `MISS`."""

    def __init__(
        self, entry: Entry, key: Any, args: tuple[Any, ...], tensors: Sequence[Tensor], objects: Sequence[Any]
    ) -> None:
        block = entry.tree.root
        assert block is not None and block.plan is not None and block.recording is not None
        self.entry, self.key = entry, key
        _, state, _, _, _ = key
        self._block, self._plan, self._recording = block, block.plan, block.recording
        self._values: dict[str, Any] = {
            "MISS": MISS, "Tensor": Tensor, "new": Tensor.__new__, "ndarray": np.ndarray, "owner_of": owner_of,
            "default_dtype": default_dtype, "is_plain": is_plain, "put_together": put_together,
            "entry": entry, "guards": entry.guards,
            "block": block, "plan": self._plan,
        }  # fmt: skip
        self._objects = {id(x) for x in objects}
        self._lines: list[str] = []
        self._tensors = 0
        self._take_apart("args", args)
        if self._tensors != len(tensors):
            raise _Other
        for number, t in enumerate(tensors):
            self._test_argument(number, t)
        if len(tensors) > 1:
            owners = ", ".join(f"id(o{i})" for i in range(len(tensors)))
            self._miss_unless(f"len({{{owners}}}) == {len(tensors)}")
        self._test_outside(state)
        self._write_run(state)
        self.renew()
        source = "\n    ".join(["def call(args, mode):", *self._lines])
        exec(compile(source, "<wayfare fast path>", "exec"), self._values)
        self.call: Any = self._values.pop("call")

    def renew(self) -> None:
        """Captured tensors have moved to other memory."""
        self.moved = self.entry.moved
        self._values["owners"] = self.entry._owners
        for number, captured in enumerate(self.entry.captured):
            self._values[f"w{number}"] = captured.array

    # -- tests

    def _miss_unless(self, *tests: str) -> None:
        # Python's compiler recurses over long `and` chains, so they are split.
        for i in range(0, len(tests), 50):
            self._lines.append(f"if not ({' and '.join(tests[i : i + 50])}): return MISS")

    def _name(self, value: Any) -> str:
        """A name for a constant of the generated function."""
        name = f"x{len(self._values)}"
        self._values[name] = value
        return name

    def _take_apart(self, name: str, structure: Any) -> None:
        """Generate tests of the structure of the arguments, and names for its tensors: t0, t1, …"""
        kind = structure.__class__
        if id(structure) in self._objects:
            # Compared by identity, even a tuple: `self` of a method may have any type. A weak reference, because the
            # entry is dropped together with the object.
            known = f"{self._name(weakref.ref(structure))}()" if can_be_weak(structure) else self._name(structure)
            self._miss_unless(f"{name} is {known}")
        elif kind is tuple or kind is list:
            self._miss_unless(f"{name}.__class__ is {kind.__name__}", f"len({name}) == {len(structure)}")
            names = [f"{name}_{i}" for i in range(len(structure))]
            if names:
                self._lines.append(f"{', '.join(names)}, = {name}")
            for own, part in zip(names, structure, strict=True):
                self._take_apart(own, part)
        elif kind is Tensor:
            self._lines.append(f"t{self._tensors} = {name}")
            self._tensors += 1
        elif kind in _PLAIN:
            self._miss_unless(f"{name}.__class__ is {self._name(kind)}", f"{name} == {self._name(structure)}")
        else:
            raise _Other

    def _test_argument(self, number: int, t: Tensor) -> None:
        """Generate tests of a tensor, and names for its array (a0, a1, …) and the owner of its memory (o0, o1, …)."""
        array, n = t._array, number
        self._miss_unless(f"t{n}.__class__ is Tensor")
        self._lines += [f"if t{n}._view is not None: t{n}._renew()", f"a{n} = t{n}._array"]
        self._miss_unless(
            f"a{n}.__class__ is ndarray", f"a{n}.shape == {self._name(array.shape)}",
            f"a{n}.strides == {self._name(array.strides)}", f"a{n}.dtype is {self._name(array.dtype)}",
            f"t{n}._requires_grad is {t._requires_grad}", f"t{n}._edge is {'' if t._edge is None else 'not '}None",
            f"a{n}.flags.writeable is {array.flags.writeable}", f"(t{n}._extras is None or is_plain(t{n}))",
        )  # fmt: skip
        self._lines.append(f"o{n} = a{n} if a{n}.base is None else owner_of(a{n})")
        self._miss_unless(f"id(o{n}) not in owners")

    def _test_outside(self, state: Any) -> None:
        """Generate tests of modes, guards, captured tensors and the plan."""
        grad, inference, dtype = state
        modes = f"mode.grad is {grad} and mode.inference is {inference}"
        self._miss_unless(
            f"(mode is None or ({modes}))" if grad and not inference else f"mode is not None and {modes}",
            f"default_dtype() is {self._name(dtype)}", "block.plan is plan", "block.hits < block.next_check",
            "guards.holds()",
        )  # fmt: skip
        tests = []
        for number, captured in enumerate(self.entry.captured):
            tensor = self._name(captured.tensor)
            tests += [f"{tensor}._array is w{number}", f"{tensor}._requires_grad is {captured.needs}"]
        for source in self.entry.views:
            # An argument that was a view must be a view of a tensor with the same shape and dtype.
            if source.what.kind != "argument":
                raise _Other
            view, base = f"t{source.what.what}._view", source.value
            tests += [f"{view} is not None", f"{view}.base._array.shape == {self._name(tuple(base.shape))}",
                      f"{view}.base._array.dtype is {self._name(base.dtype)}"]  # fmt: skip
        if tests:
            self._miss_unless(*tests)

    # -- running

    def _write_run(self, state: Any) -> None:
        weights = {id(captured.tensor): number for number, captured in enumerate(self.entry.captured)}
        arrays = []
        for source in self._block.inputs:
            if not isinstance(source, Source) or source.kind not in ("argument", "captured"):
                raise _Other
            arrays.append(f"a{source.what}" if source.kind == "argument" else f"w{weights[id(source.what)]}")
        arrays += [self._name(constant) for constant in self._plan.constants]
        allocations = self._plan.allocations
        if self._plan.single_list is not None and self._plan.arena_bytes <= _KEPT:
            # One arena for all calls: it holds no results, and calls of one function do not overlap.
            (make, *how), *allocations = allocations
            arrays.append(self._name(make(*how)))
        for make, *how in allocations:
            self._lines.append(f"n{len(arrays)} = {self._name(make)}({', '.join(map(self._name, how))})")
            arrays.append(f"n{len(arrays)}")
        objects = "".join(f"{name}, " for name in arrays)
        if self._plan.single_list is not None:
            # Native code reads a tuple; a list would be converted.
            self._values["run"] = self._plan.single_list.run
            self._lines.append(f"run(({objects}))")
            made = [arrays[number] for number in self._plan.made_numbers]
        else:
            self._values["run"] = self._plan.run_objects
            made = [f"m{i}" for i in range(len(self._plan.made_numbers))]
            self._lines.append(f"{''.join(f'{name}, ' for name in made)}{'= ' * bool(made)}run([{objects}])")
        self._lines += ["block.visits += 1", "block.hits += 1", "entry.hits += 1"]
        count = len(self._recording.made)
        made, saved = made[:count], made[count : count + len(self._recording.saved)]
        if self._recording.seeds:
            shared = self._block.gradient.shared
            saved = [name if at is None else made[at] for name, at in zip(saved, shared, strict=True)]
        for i, name in enumerate(made):
            self._lines += [f"r{i} = new(Tensor)", f"r{i}._array = {name}",
                            f"r{i}._edge = r{i}._grad = r{i}._view = r{i}._extras = None",
                            f"r{i}._requires_grad = False"]  # fmt: skip
        if self._recording.seeds:
            self._write_node(made, saved)
        if state[1]:
            self._lines += [f"r{i}._more()['inference'] = True" for i in range(len(made))]
        shape: Any = self._recording.shape
        results = [f"r{self._recording.outputs[i].made}" for i in self._recording.results]
        if shape is TENSOR:
            self._lines.append(f"return {results[0]}")
        elif isinstance(shape, tuple) and shape[0] is tuple and all(part is TENSOR for part in shape[1:]):
            self._lines.append(f"return ({''.join(f'{r}, ' for r in results)})")
        else:
            self._lines.append(f"return put_together({self._name(shape)}, iter([{', '.join(results)}]))")

    def _write_node(self, made: list[str], saved: list[str]) -> None:
        """Generate the node of the results that require a gradient."""
        wanted = [i for i, needs in enumerate(self._recording.made_needs) if needs]
        given, made_arrays, saved_arrays = (
            "".join(f"{name}, " for name in names) for names in ([f"t{i}" for i in range(self._tensors)], made, saved)
        )
        self._values["node_of"] = self._block.gradient.node
        # 3 frames up: the generated function is not a line of the user's code.
        self._lines.append(f"node = node_of(({given}), ({made_arrays}), ({saved_arrays}), (), 3)")
        for number, i in enumerate(wanted):
            self._lines += [f"r{i}._edge = (node, {number})", f"r{i}._requires_grad = True"]
        if self._block.gradient.nested:
            self._values["ref"] = weakref.ref
            self._lines.append(f"node.results = ({''.join(f'ref(r{i}), ' for i in wanted)})")
