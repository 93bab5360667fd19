"""The fast path: the replay of a call that only computes, as one generated Python function.

A call of a small model takes a few microseconds, and most of that is Python overhead: computing the signature, checking
guards, collecting weights, wrapping results. For calls without decisions, writes and random numbers this is generated
as one function: a sequence of tests and one native call. It tests everything that the slow path tests, and returns
`MISS`, with nothing changed, if a test fails. Results that require a gradient get their node as on the slow path.
What text gains over loops is written in `compiler/generated.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wayfare.compiler.captures.reach import can_be_weak
from wayfare.compiler.generated import define, unless
from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.signature import is_plain
from wayfare.compiler.structure import PLAIN, TENSOR, put_together
from wayfare.core.spec import default_dtype
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

# Returned by a fast path for a call that it was not made for.
MISS = object()
# With more arguments and weights than this, Python overhead does not matter any more.
_MOST_TENSORS = 256
# The most fast paths of one function, and the most for arguments of the same sizes.
_MOST, _MOST_ALIKE = 256, 4
# An arena of at most this many bytes is kept from call to call.
_KEPT = 1 << 16


def fast_path(
    entry: Entry, key: Any, args: tuple[Any, ...], options: dict[str, Any], tensors: Sequence[Tensor], objects: Any
) -> Any:
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
        return FastPath(entry, key, args, options, tensors, objects)
    except _Other:
        return None


class _Other(Exception):
    """The arguments contain something that a fast path cannot test."""


class FastPath:
    """The replay of one entry. `call(args, options, mode)` returns the result of the function, or `MISS`."""

    def __init__(
        self, entry: Entry, key: Any, args: tuple[Any, ...], options: dict[str, Any], tensors: Sequence[Tensor],
        objects: Sequence[Any],
    ) -> None:  # fmt: skip
        block = entry.tree.root
        assert block is not None and block.plan is not None and block.recording is not None
        self.entry, self.key, self.sizes = entry, key, _sizes(args, options)
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
        self._miss_unless(f"len(args) == {len(args)}", f"len(options) == {len(options)}" if options else "not options")
        self._take_parts("args", args)
        self._take_parts("options", options)
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
        self.call: Any = define("call", "args, options, mode", self._lines, self._values)

    def renew(self) -> None:
        """Captured tensors have moved to other memory."""
        self.moved = self.entry.moved
        self._values["owners"] = self.entry._owners
        for number, captured in enumerate(self.entry.captured):
            self._values[f"w{number}"] = captured.array

    # -- tests

    def _miss_unless(self, *tests: str) -> None:
        self._lines += unless(tests, "return MISS")

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
        elif kind in (tuple, list, dict) or (isinstance(structure, tuple) and hasattr(kind, "_fields")):
            self._miss_unless(f"{name}.__class__ is {self._name(kind)}", f"len({name}) == {len(structure)}")
            self._take_parts(name, structure)
        elif kind is Tensor:
            self._lines.append(f"t{self._tensors} = {name}")
            self._tensors += 1
        elif kind in PLAIN:
            self._miss_unless(f"{name}.__class__ is {self._name(kind)}", f"{name} == {self._name(structure)}")
        elif kind is float:
            # -0.0 equals 0.0, and NaN does not equal NaN.
            plain = structure < 0 or structure > 0
            same = f"{name} == {self._name(structure)}" if plain else f"repr({name}) == '{structure!r}'"
            self._miss_unless(f"{name}.__class__ is float", same)
        else:
            raise _Other

    def _take_parts(self, name: str, structure: Any) -> None:
        """Generate tests of the parts of a container, whose length was tested."""
        if not structure:
            return
        names, source = [f"{name}_{i}" for i in range(len(structure))], name
        if structure.__class__ is dict:
            if not all([key.__class__ is str for key in structure]):
                raise _Other
            # Keys by identity: a literal in code is the same object each time. Other objects take the slow path.
            self._lines.append(f"{', '.join(names)}, = {name}")
            self._miss_unless(*[f"{own} is {self._name(key)}" for own, key in zip(names, structure, strict=True)])
            structure, source = structure.values(), f"{name}.values()"
        self._lines.append(f"{', '.join(names)}, = {source}")
        for own, part in zip(names, structure, strict=True):
            self._take_apart(own, part)

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


class FastPaths:
    """The fast paths of one function: first the last one that was taken is tried, then those for the same sizes."""

    def __init__(self) -> None:
        self.last: FastPath | None = None
        self._all: list[FastPath] = []  # the newest comes first
        self._by_sizes: dict[Any, list[FastPath]] = {}

    def __iter__(self) -> Iterator[FastPath]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def another(self, args: tuple[Any, ...], options: dict[str, Any], mode: Any) -> Any:
        """The result from a fast path other than the last one, which becomes the last one; or `MISS`."""
        few = len(self._all) <= _MOST_ALIKE
        for path in self._all if few else self._by_sizes.get(_sizes(args, options), ()):
            if path is not self.last:
                made = path.call(args, options, mode)
                if made is not MISS:
                    self.last = path
                    return made
        return MISS

    def add(self, path: FastPath) -> None:
        """Add a fast path; if there are too many, the oldest is dropped."""
        alike = [old for old in self._all if old.sizes == path.sizes]
        dropped = alike[_MOST_ALIKE - 1 :] + self._all[_MOST - 1 :]
        self._set([path, *[old for old in self._all if old not in dropped]])

    def keep(self, wanted: Callable[[FastPath], bool]) -> None:
        """Drop all but the wanted ones."""
        self._set(list(filter(wanted, self._all)))

    def clear(self) -> None:
        """Drop all."""
        self._set([])

    def _set(self, paths: list[FastPath]) -> None:
        by_sizes: dict[Any, list[FastPath]] = {}
        for path in paths:
            by_sizes.setdefault(path.sizes, []).append(path)
        self._all, self._by_sizes = paths, by_sizes
        self.last = paths[0] if paths else None


def _sizes(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Sizes and plain values of the arguments: where they differ, the signatures differ."""
    sizes = [a._array.shape if a.__class__ is Tensor else _size(a) for a in args]
    if options:
        sizes += [a._array.shape if a.__class__ is Tensor else _size(a) for a in options.values()]
    return tuple(sizes)


def _size(value: Any) -> Any:
    kind = value.__class__
    return len(value) if kind in (list, tuple, dict) else value if kind in PLAIN else None
