"""The fast path: the replay of calls with one signature, as one generated Python function.

A step of a small model computes for a few microseconds, and finding out that a call is a known one takes longer:
computing the signature, checking guards, collecting weights, wrapping results. Here this is one function: a sequence of
tests, one native call through the trace tree (`replay/native_tree.py`), and the end of the call (`replay/fast_end.py`).
It tests everything that the slow path tests, and returns `MISS`, with nothing changed, if a test fails or a decision
has an outcome that has no plan yet. What text gains over loops is written in `compiler/generated.py`.
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
from wayfare.compiler.replay.fast_end import EndWriter, Unsuited, is_plain_end
from wayfare.compiler.replay.native_tree import NativeTree
from wayfare.compiler.signature import is_plain
from wayfare.compiler.structure import PLAIN
from wayfare.core.autocast import DEFAULTS as AUTOCAST_DEFAULTS
from wayfare.core.device import BACKENDS, default_device
from wayfare.core.spec import default_dtype
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

# Returned by a fast path for a call that it was not made for.
MISS = object()
# With more arguments and weights than this, Python overhead does not matter. (A device computes meanwhile.)
_MOST_TENSORS, _MOST_ON_DEVICE = 256, 4096
# The most fast paths of one function, and the most for arguments of the same sizes.
_MOST, _MOST_ALIKE = 256, 4


def fast_path(
    entry: Entry, key: Any, args: tuple[Any, ...], options: dict[str, Any], tensors: Sequence[Tensor], objects: Any
) -> Any:
    """A `FastPath` that replays an entry for calls with this signature; None if it has no such form."""
    _, _, sharing, layouts, held = key
    if (
        held is not None or sharing is not None or any(more for *_, more in layouts) or entry.shares_memory
        or entry.grads_share_memory
        or len(entry.captured) + len(tensors) > (_MOST_ON_DEVICE if entry.on_device else _MOST_TENSORS)
    ):  # fmt: skip
        return None
    native = NativeTree(entry, tensors)
    if native.root < 0 and not _only_computes(entry, tensors) and not _on_device(entry, tensors):
        return None
    try:
        return FastPath(entry, native, key, args, options, tensors, objects)
    except Unsuited:
        return None


def _only_computes(entry: Entry, tensors: Sequence[Tensor]) -> bool:
    """Is it one block with Python in its plan, and without effects besides its results?"""
    block = entry.tree.root
    recording = block.recording if block is not None else None
    return not (
        block is None or recording is None or block.plan is None or not block.plan.target.native or block.calls
        or block.slots or recording.writes or not is_plain_end(block) or recording.dead or entry.grad_guards
        or not block.plan.fresh_results or block.fetch is None or not block.plan.fits(block.fetch.arrays(tensors, {}))
    )  # fmt: skip


def _on_device(entry: Entry, tensors: Sequence[Tensor]) -> bool:
    """Is it one block whose plan runs on a device? Its effects may be any: they are done in Python."""
    block = entry.tree.root
    if block is None or block.recording is None or block.plan is None or block.fetch is None:
        return False
    inputs = all(isinstance(where, Source) and where.kind != "base" for where in block.inputs)
    return inputs and not block.plan.target.native and block.plan.fits(block.fetch.arrays(tensors, {}))


class FastPath:
    """The replay of one entry. `call(args, options, mode)` returns the result of the function, or `MISS`."""

    def __init__(
        self, entry: Entry, native: NativeTree, key: Any, args: tuple[Any, ...], options: dict[str, Any],
        tensors: Sequence[Tensor], objects: Sequence[Any],
    ) -> None:  # fmt: skip
        self.entry, self.key, self.sizes = entry, key, _sizes(args, options)
        self.version = entry.version
        _, state, _, _, _ = key
        self._native = native
        self._alone = entry.tree.root if native.root < 0 else None  # the only block, which no tree runs
        self._values: dict[str, Any] = {
            "MISS": MISS, "Tensor": Tensor, "ndarray": np.ndarray, "owner_of": owner_of,
            "default_dtype": default_dtype, "backends": BACKENDS,
            "default_device": default_device, "autocast": AUTOCAST_DEFAULTS, "is_plain": is_plain, "entry": entry,
            "guards": entry.guards,
        }  # fmt: skip
        self._objects = {id(x) for x in objects}
        self._lines: list[str] = []
        self._tensors = 0
        self._grads: dict[int, str] = {}  # names of the arrays of gradients, by id of their source
        self._miss_unless(f"len(args) == {len(args)}", f"len(options) == {len(options)}" if options else "not options")
        self._take_parts("args", args)
        self._take_parts("options", options)
        if self._tensors != len(tensors):
            raise Unsuited
        for number, t in enumerate(tensors):
            self._test_argument(number, t)
        self._test_outside(state)
        self._test_grads()
        owners = [f"id(o{i})" for i in range(len(tensors))] + [f"id(owner_of({name}))" for name in self._grads.values()]
        if len(owners) > 1:
            self._miss_unless(f"len({{{', '.join(owners)}}}) == {len(owners)}")
        self._write_run(state)
        self.renew()
        self.call: Any = define("call", "args, options, mode", self._lines, self._values)

    def renew(self) -> None:
        """Captured tensors have moved to other memory."""
        self.moved = self.entry.moved
        self._values["owners"] = self.entry._owners
        for leaf in self._native.leaves:
            assert leaf.block.fetch is not None
            leaf.block.fetch.renew(self.moved)
        if self._alone is not None and self._alone.fetch is not None:
            self._alone.fetch.renew(self.moved)
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
            raise Unsuited

    def _take_parts(self, name: str, structure: Any) -> None:
        """Generate tests of the parts of a container, whose length was tested."""
        if not structure:
            return
        names, source = [f"{name}_{i}" for i in range(len(structure))], name
        if structure.__class__ is dict:
            if not all([key.__class__ is str for key in structure]):
                raise Unsuited
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
            f"a{n}.__class__ is {self._class(array)}", f"a{n}.shape == {self._name(array.shape)}",
            f"a{n}.strides == {self._name(array.strides)}", self._same_dtype(f"a{n}", array),
            f"t{n}._requires_grad is {t._requires_grad}", f"t{n}._edge is {'' if t._edge is None else 'not '}None",
            *self._same_access(f"a{n}", array), f"(t{n}._extras is None or is_plain(t{n}))",
        )  # fmt: skip
        self._lines.append(f"o{n} = a{n} if a{n}.base is None else owner_of(a{n})")
        self._miss_unless(f"id(o{n}) not in owners")

    def _class(self, array: Any) -> str:
        return "ndarray" if array.__class__ is np.ndarray else self._name(array.__class__)

    def _same_dtype(self, name: str, array: Any) -> str:
        return f"{name}.dtype {'is' if array.__class__ is np.ndarray else '=='} {self._name(array.dtype)}"

    def _same_access(self, name: str, array: Any) -> list[str]:
        # Strides say it of arrays of other devices.
        return [f"{name}.flags.writeable is {array.flags.writeable}"] if array.__class__ is np.ndarray else []

    def _test_outside(self, state: Any) -> None:
        """Generate tests of modes, guards, captured tensors and the plan."""
        grad, inference, dtype, autocast, defaults, device = state
        modes = f"mode.grad is {grad} and mode.inference is {inference}"
        if autocast is None:
            modes += " and mode.autocast is None"
        else:
            modes += f" and mode.autocast is not None and mode.autocast.key == {self._name(autocast)}"
        ordinary = grad and not inference and autocast is None
        self._miss_unless(
            f"(mode is None or ({modes}))" if ordinary else f"mode is not None and {modes}",
            f"default_dtype() is {self._name(dtype)}", f"autocast.key == {self._name(defaults)}",
            f"(not backends or default_device() == {self._name(device)})",
            f"entry.version == {self.version}", "guards.holds()",
        )  # fmt: skip
        tests = []
        for number, captured in enumerate(self.entry.captured):
            tensor = self._name(captured.tensor)
            tests += [f"{tensor}._array is w{number}", f"{tensor}._requires_grad is {captured.needs}"]
        for source in self.entry.views:
            # An argument that was a view must be a view of a tensor with the same shape and dtype.
            if source.what.kind != "argument":
                raise Unsuited
            view, base = f"t{source.what.what}._view", source.value
            tests += [f"{view} is not None", f"{view}.base._array.shape == {self._name(tuple(base.shape))}",
                      f"{view}.base._array.dtype is {self._name(base.dtype)}"]  # fmt: skip
        self._miss_unless(*tests)

    def _test_grads(self) -> None:
        """Generate tests of the gradients that the call reads, and names for their arrays (g0, g1, …)."""
        for owner, source in self.entry.grad_guards:
            name = self._tensor_of(owner)
            if source is None:
                self._miss_unless(f"{name}._grad is None")
                continue
            own = f"g{len(self._grads)}"
            self._lines += [f"{own} = {name}._grad"]
            self._miss_unless(f"{own}.__class__ is Tensor", f"{own}._edge is None")
            strides, writeable = source.layout
            self._lines.append(f"{own} = {own}._array")
            kind: Any = np.ndarray if self._alone is None else self._alone.plan.target.array  # type: ignore[union-attr]
            on_cpu = kind is np.ndarray
            self._miss_unless(
                f"{own}.__class__ is {self._name(kind)}", f"{own}.shape == {self._name(tuple(source.value.shape))}",
                f"{own}.dtype {'is' if on_cpu else '=='} {self._name(source.value.dtype)}",
                f"{own}.strides == {self._name(strides)}", f"id(owner_of({own})) not in owners",
                *([f"{own}.flags.writeable is {writeable}"] if on_cpu else []),
            )  # fmt: skip
            self._grads[id(source)] = own

    def _tensor_of(self, source: Source) -> str:
        """The name of an argument or a captured tensor."""
        if source.kind == "argument":
            return f"t{source.what}"
        if source.kind != "captured":
            raise Unsuited
        return self._name(source.what)

    # -- running

    def _array_of(self, source: Any) -> str:
        """The name of an input array."""
        if not isinstance(source, Source) or source.kind not in ("argument", "captured", "grad"):
            raise Unsuited
        if source.kind == "argument":
            return f"a{source.what}"
        if source.kind == "grad":
            if id(source) not in self._grads:
                raise Unsuited
            return self._grads[id(source)]
        weights = {id(captured.tensor): number for number, captured in enumerate(self.entry.captured)}
        return f"w{weights[id(source.what)]}"

    def _write_run(self, state: Any) -> None:
        """Generate the run of the blocks and what follows it, in this function if there is one last block."""
        native = self._native
        write = EndWriter(self.entry, self._values, self._name, self._tensor_of, self._tensors, state[1])
        if native.root < 0:
            block = self.entry.tree.root
            assert block is not None and block.plan is not None
            names = [self._array_of(source) for source in block.inputs]
            if not block.plan.target.native:
                self._miss_unless(f"{self._name(block)}.hits < {self._name(block)}.next_check")
                self._lines += write.run_on_device(block, names)
                return
            names += [self._name(constant) for constant in block.plan.constants]
            made = self._allocate(len(names), block.plan.allocations)
            self._miss_unless(f"{self._name(block)}.hits < {self._name(block)}.next_check")
            self._lines += write.run_in_python(block, [*names, *made])
            return
        inputs = [self._array_of(source) for source in native.inputs]
        made = self._allocate(len(inputs), native.allocations)
        self._values["run"] = native.commands.run
        objects = f"({''.join(f'{name}, ' for name in [*inputs, *made])})"
        if len(native.leaves) == 1 and native.leaves[0].block.depth == 0:
            (leaf,) = native.leaves
            self._miss_unless(f"{self._name(leaf.block)}.hits < {self._name(leaf.block)}.next_check")
            self._lines += [f"objects = {objects}", *write.run_leaf(leaf, len(inputs))]
            return
        self._lines += [f"objects = {objects}", f"code = run(objects, {native.root})", "if code == 0: return MISS"]
        given = ", ".join(["objects", *(f"t{i}" for i in range(self._tensors)), *made])
        ends: dict[int, Any] = {}
        for leaf in native.leaves:
            own = self._name(leaf.block)
            lines = unless([f"{own}.hits < {own}.next_check"], "return MISS")
            lines += write.run_leaf(leaf, len(inputs), frames=4)
            ends[leaf.reached if leaf.pauses else leaf.done] = define("end", given, lines, self._values)
        self._values["ends"] = ends
        self._lines.append(f"return ends[code]({given})")

    def _allocate(self, first: int, allocations: Sequence[Any]) -> list[str]:
        """Generate the arrays that each call allocates: n5, n6, …, by their numbers among the buffers."""
        names = [f"n{first + i}" for i in range(len(allocations))]
        for name, (make, *how) in zip(names, allocations, strict=True):
            self._lines.append(f"{name} = {self._name(make)}({', '.join(map(self._name, how))})")
        return names


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

    def start_clock(self) -> Any:
        """A clock of the device of the last fast path; None if there is none."""
        return None if self.last is None else self.last.entry.start_clock()

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
