"""Calls of `wf.cond`, `wf.while_loop` and `wf.scan` in several runs, merged into steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.core.op import REGISTRY
from wayfare.exporters.recover.loop_detection import with_parts_moved
from wayfare.exporters.trace_steps import RegionStep
from wayfare.ir.graph import Block, Step, Value, leaf, unbound

if TYPE_CHECKING:
    from wayfare.exporters.recover.paths import Paths


def merge_region(m: Paths, run_ids: list[Any], regions: Sequence[RegionStep]) -> None:
    """Add the step of one control-flow function to the current block."""
    inputs = [m.var_of(run_ids, values) for values in zip(*[r.inputs for r in regions], strict=True)]
    {"cond": _cond, "while": _while, "scan": _scan}[regions[0].kind](m, run_ids, regions, inputs)


def _follow(
    m: Paths, run_ids: list[Any], regions: Sequence[RegionStep], number: int, inputs: Sequence[Value]
) -> list[Value]:
    """Merge one of its functions, with these variables as inputs."""
    traces = [r.blocks[number] for r in regions]
    for run, trace in zip(run_ids, traces, strict=True):
        for value, var in zip(trace.inputs, inputs, strict=True):
            m.known[run][id(value)] = var
    return m.follow(run_ids, [with_parts_moved(t) for t in traces])


def _add(m: Paths, regions: Sequence[RegionStep], kind: str, inputs: Sequence[Value], outputs: Sequence[Value],
         blocks: Sequence[Block], **attrs: Any) -> None:  # fmt: skip
    where = regions[0]
    step = Step(None, tuple(inputs), attrs, kind, blocks=tuple(blocks), site=where.site, path=where.path)
    m.steps.append(step.makes(*outputs))


def _carried(initial: Sequence[Value]) -> list[Value]:
    """The inputs of a loop body for values that begin as these."""
    return [leaf("input", "carried", v.shape, v.dtype) for v in initial]


def counter() -> Value:
    """The input of a loop body that has the number of the iteration."""
    return leaf("input", "iteration", (), np.dtype(np.int64))


def _outputs(m: Paths, run_ids: list[Any], regions: Sequence[RegionStep]) -> list[Value]:
    return [m.output(run_ids, values) for values in zip(*[r.outputs for r in regions], strict=True)]


def _cond(m: Paths, run_ids: list[Any], regions: Sequence[RegionStep], inputs: list[Value]) -> None:
    condition, *operands = inputs
    blocks = []
    for number in (0, 1):
        with m.inside() as steps:
            results = _follow(m, run_ids, regions, number, operands)
        blocks.append(Block([], steps, results))
    _add(m, regions, "if", [condition], _outputs(m, run_ids, regions), blocks)


def _while(m: Paths, run_ids: list[Any], regions: Sequence[RegionStep], inputs: list[Value]) -> None:
    (entry,) = _follow(m, run_ids, regions, 0, inputs)
    number = counter()
    m.symbol(number, -1, dict.fromkeys(run_ids, 0))
    carried = _carried(inputs)
    with m.inside() as steps:
        outs = _follow(m, run_ids, regions, 1, carried)
        (again,) = _follow(m, run_ids, regions, 0, outs)
    block = Block([number, *carried], steps, [again, *outs])
    _add(m, regions, "loop", [entry, *inputs], _outputs(m, run_ids, regions), [block],
         trips=None, asks=True, entry=True, carried=len(inputs))  # fmt: skip


def _scan(m: Paths, run_ids: list[Any], regions: Sequence[RegionStep], inputs: list[Value]) -> None:
    dim, reverse, count = regions[0].options
    inits, rows = inputs[:count], inputs[count:]
    dim %= len(rows[0].shape)
    length = rows[0].shape[dim]
    number = counter()
    iteration = m.symbol(number, -1, dict.fromkeys(run_ids, 0))
    carried = _carried(inits)
    with m.inside() as steps:
        parts = []
        for row in rows:
            part = unbound(tuple(n for axis, n in enumerate(row.shape) if axis != dim), row.dtype)
            attrs = {"dim": dim, "index": length - 1 - iteration if reverse else iteration}
            m.steps.append(Step(REGISTRY["select"], (row,), attrs, site=regions[0].site).makes(part))
            parts.append(part)
        outs = _follow(m, run_ids, regions, 0, [*carried, *parts])
    outputs = _outputs(m, run_ids, regions)
    block = Block([number, *carried], steps, outs)
    made = outputs
    after = []
    if reverse:
        made = [*outputs[:count], *[unbound(v.shape, v.dtype) for v in outputs[count:]]]
        after = [Step(REGISTRY["flip"], (unflipped,), {"dims": (0,)}, site=regions[0].site).makes(out)
                 for unflipped, out in zip(made[count:], outputs[count:], strict=True)]  # fmt: skip
    _add(m, regions, "loop", inits, made, [block], trips=length, asks=False, entry=False, carried=count)
    m.steps += after
