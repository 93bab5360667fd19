"""The end of a fast path, as lines of Python: the last block is run, and its results become tensors.

It does what `Entry.follow` and `Entry.complete` do for a last block: call-outs, the plan, writes, `.grad`, results,
assignments. Nothing outside is changed before the native run of the last block is over; what fails earlier is undone,
and the slow path takes the call.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from wayfare.compiler.record.graph import Source
from wayfare.compiler.replay.call_gradient import used_up
from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.native_tree import Leaf
from wayfare.compiler.replay.trace_tree import Block
from wayfare.compiler.structure import TENSOR, put_together
from wayfare.core.tensor import Tensor


class Unsuited(Exception):
    """This call has no fast path."""


class Ended(Exception):
    """Raised in place of an error after the plan has written: the call must not be run again."""


def is_plain_end(block: Block) -> bool:
    """Are the results new arrays, and all that a call leaves behind (besides written memory and `.grad` = None)?"""
    recording = block.recording
    return recording is not None and not (
        recording.effects or any(recording.orders) or any(count for _, count in recording.draws)
        or any(number is not None for _, number in recording.grads)
        or any(out.kind != "made" or out.leaf or out.grad >= 0 for out in recording.outputs)
    )  # fmt: skip


class EndWriter:
    """Writes the ends of a fast path. `name(value)` names a constant, `tensor_of(source)` a tensor."""

    def __init__(
        self, entry: Entry, values: dict[str, Any], name: Callable[[Any], str], tensor_of: Callable[[Source], str],
        tensors: int, inference: bool,
    ) -> None:  # fmt: skip
        self._entry, self._name, self._tensor_of, self._inference = entry, name, tensor_of, inference
        self._arguments = f"({''.join(f't{i}, ' for i in range(tensors))})"
        values.update(new=Tensor.__new__, put_together=put_together, undo=_undo, Ended=Ended, used_up=used_up,
                      ref=weakref.ref)  # fmt: skip

    def run_in_python(self, block: Block, arrays: Sequence[str]) -> list[str]:
        """The only block, whose plan runs in several parts."""
        assert block.plan is not None
        made = [f"m{i}" for i in range(len(block.plan.made_numbers))]
        run = self._name(block.plan.run_objects)
        return [f"{''.join(f'{m}, ' for m in made)}{'= ' * bool(made)}{run}([{', '.join(arrays)}])",
                *self._end(block, made, "()", 3)]  # fmt: skip

    def run_on_device(self, block: Block, arrays: Sequence[str]) -> list[str]:
        """The only block, whose plan runs on a device."""
        plan, recording, fetch = block.plan, block.recording, block.fetch
        assert plan is not None and recording is not None and fetch is not None
        made = [f"m{i}" for i in range(len(block.targets))]
        given = "()"
        run = []
        if not plan.python_steps:
            run += [f"{self._tensor_of(source)}._grad = None" for source in recording.forgotten]
        unpacked = f"{', '.join(made)}, = " if made else ""
        if block.calls or block.slots:
            given = "given"
            give = f"{self._name(self._entry._give)}({self._name(block)}, given, ran)"
            run = ["given, ran = [], []", "try:", *[f"    {line}" for line in (give, *run)]]
            run += [f"    {unpacked}{self._name(plan.run_on_device)}([{', '.join(arrays)}], given)",
                    "except BaseException:", "    undo(ran)", "    raise"]  # fmt: skip
        else:
            run.append(f"{unpacked}{self._name(plan.run_on_device)}([{', '.join(arrays)}])")
        return run + self._after(block, made, given, 3)

    def run_leaf(self, leaf: Leaf, inputs: int, frames: int = 3) -> list[str]:
        """A last block of a command tree, which takes `objects`; the user's code is `frames` up."""
        block = leaf.block
        recording, plan, fetch = block.recording, block.plan, block.fetch
        assert recording is not None and plan is not None and fetch is not None
        runs = not (frames == 4 and not leaf.pauses)  # else the run is over
        again = [f"if run(objects, {leaf.start}) != {leaf.done}:"] if runs else []
        given = "()"
        lines: list[str] = []
        if block.calls:
            lines, given = self._call_outs(block, leaf)
            if not plan.python_steps:
                # Nothing can fail from here on, so old gradients that the call replaces are freed first.
                lines += [f"    {self._tensor_of(source)}._grad = None" for source in recording.forgotten]
            lines += [f"    {again[0]}", "        undo(ran)", "        return MISS",
                      "except BaseException:", "    undo(ran)", "    raise"]  # fmt: skip
        elif again:
            if not plan.python_steps:
                lines += [f"{self._tensor_of(source)}._grad = None" for source in recording.forgotten]
            lines += [again[0], "    return MISS"]
        return lines + self._after(block, [f"n{number}" for number in leaf.made], given, frames)

    def _after(self, block: Block, made: list[str], given: str, frames: int) -> list[str]:
        """What follows the run, which nothing can undo."""
        end = []
        if block.written and block.fetch is not None:
            end.append(f"{self._name(block.fetch.note_writes)}({self._arguments})")
        end += self._end(block, made, given, frames)
        if block.written or block.calls or not is_plain_end(block):
            end = ["try:", *[f"    {line}" for line in end], "except Exception as error: raise Ended from error"]
        return end

    def _call_outs(self, block: Block, leaf: Leaf) -> tuple[list[str], str]:
        """Run the call-outs, and put their numbers where the updates read them."""
        lines = ["ran = []", "try:"]
        for number, call in block.calls:
            lines += [f"    c{number} = {self._name(call.run)}()", f"    ran.append({self._name(call)})"]
        slots = [f"c{slot[0]}[{slot[1]}]" for slot in block.slots]
        for slot, array in leaf.numbers:
            pack = struct.Struct(f"{array.size}{array.dtype.char}")
            lines.append(f"    {self._name(pack.pack_into)}({self._name(array.data)}, 0, *{slots[slot]})")
        return lines, f"[{', '.join(slots)}]"

    def _end(self, block: Block, made: list[str], given: str, frames: int) -> list[str]:
        """The lines after the run, up to the result of the function."""
        recording, own = block.recording, self._name(block)
        assert recording is not None
        lines = [f"{own}.fast_hits += 1"]
        if not is_plain_end(block):
            effects = self._name(recording.effects)
            parts = ", ".join([f"tensors[{i}]" for i in recording.results])
            return [*lines, f"tensors = entry.finish({own}, [{', '.join(made)}], {self._arguments}, {given})",
                    f"for effect in {effects}: effect.apply(tensors)",
                    f"return put_together({self._name(recording.shape)}, iter([{parts}]))"]  # fmt: skip
        lines += [f"{own}.hits += 1", "entry.hits += 1"]
        count = len(recording.made)
        made, saved = made[:count], made[count : count + len(recording.saved)]
        for i, name in enumerate(made):
            lines += [f"r{i} = new(Tensor)", f"r{i}._array = {name}",
                      f"r{i}._edge = r{i}._grad = r{i}._view = r{i}._extras = None",
                      f"r{i}._requires_grad = False"]  # fmt: skip
        if recording.dead:
            for i in [i for i, needs in enumerate(recording.made_needs) if needs]:
                lines += [f"r{i}._edge = node = used_up({self._entry.name!r})", f"r{i}._requires_grad = True",
                          f"node.shape, node.dtype = {made[i]}.shape, {made[i]}.dtype"]  # fmt: skip
        elif recording.seeds:
            lines += self._node(block, made, saved, given, frames)
        lines += [f"{self._tensor_of(source)}._grad = None" for source, _ in recording.grads]
        if self._inference:
            lines += [f"r{i}._more()['inference'] = True" for i in range(len(made))]
        shape: Any = recording.shape
        results = [f"r{recording.outputs[i].made}" for i in recording.results]
        if shape is TENSOR:
            lines.append(f"return {results[0]}")
        elif isinstance(shape, tuple) and shape[0] is tuple and all(part is TENSOR for part in shape[1:]):
            lines.append(f"return ({''.join(f'{r}, ' for r in results)})")
        else:
            lines.append(f"return put_together({self._name(shape)}, iter([{', '.join(results)}]))")
        return lines

    def _node(self, block: Block, made: list[str], saved: list[str], given: str, frames: int) -> list[str]:
        """The node of the results that require a gradient."""
        recording = block.recording
        if recording is None or block.gradient is None:
            raise Unsuited
        saved = [name if at is None else made[at] for name, at in zip(saved, block.gradient.shared, strict=True)]
        wanted = [i for i, needs in enumerate(recording.made_needs) if needs]
        arrays, kept = ("".join(f"{name}, " for name in names) for names in (made, saved))
        # So many frames up: the generated function is not a line of the user's code.
        node = self._name(block.gradient.node)
        lines = [f"node = {node}({self._arguments}, ({arrays}), ({kept}), {given}, {frames})"]
        for number, i in enumerate(wanted):
            lines += [f"r{i}._edge = (node, {number})", f"r{i}._requires_grad = True"]
        if block.gradient.nested:
            lines.append(f"node.results = ({''.join(f'ref(r{i}), ' for i in wanted)})")
        return lines


def _undo(ran: list[Any]) -> None:
    """Undo call-outs, the last one first."""
    for call in reversed(ran):
        call.undo()
