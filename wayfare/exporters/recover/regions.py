"""Calls of `wf.cond`, `wf.while_loop` and `wf.scan` in several runs, merged into nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wayfare.core.op import REGISTRY
from wayfare.core.spec import int64
from wayfare.exporters.program import Block, Node, Var
from wayfare.exporters.recover.loop_detection import with_parts_moved
from wayfare.exporters.trace import RegionEvent

if TYPE_CHECKING:
    from wayfare.exporters.recover.paths import Paths


def merge_region(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent]) -> None:
    """Add the node of one control-flow function to the current block."""
    inputs = [m.var_of(run_ids, values) for values in zip(*[r.inputs for r in regions], strict=True)]
    {"cond": _cond, "while": _while, "scan": _scan}[regions[0].kind](m, run_ids, regions, inputs)


def _follow(
    m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent], number: int, inputs: Sequence[Var]
) -> list[Var]:
    """Merge one of its functions, with these variables as inputs."""
    traces = [r.blocks[number] for r in regions]
    for run, trace in zip(run_ids, traces, strict=True):
        for value, var in zip(trace.inputs, inputs, strict=True):
            m.known[run][id(value)] = var
    return m.follow(run_ids, [with_parts_moved(t) for t in traces])


def _node(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent], kind: str, inputs: list[Var],
          outputs: list[Var], blocks: list[Block], **attrs: Any) -> None:  # fmt: skip
    m.nodes.append(Node(kind, inputs, outputs, attrs, blocks=blocks, site=regions[0].site, path=regions[0].path))


def _outputs(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent]) -> list[Var]:
    return [m.output(run_ids, values) for values in zip(*[r.outputs for r in regions], strict=True)]


def _cond(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent], inputs: list[Var]) -> None:
    condition, *operands = inputs
    blocks = []
    for number in (0, 1):
        with m.inside() as nodes:
            results = _follow(m, run_ids, regions, number, operands)
        blocks.append(Block([], nodes, results))
    _node(m, run_ids, regions, "if", [condition], _outputs(m, run_ids, regions), blocks)


def _while(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent], inputs: list[Var]) -> None:
    (entry,) = _follow(m, run_ids, regions, 0, inputs)
    counter = Var(int64, (), "iteration")
    m.symbol(counter, -1, dict.fromkeys(run_ids, 0))
    carried = [Var(v.dtype, v.shape) for v in inputs]
    with m.inside() as nodes:
        outs = _follow(m, run_ids, regions, 1, carried)
        (again,) = _follow(m, run_ids, regions, 0, outs)
    block = Block([counter, *carried], nodes, [again, *outs])
    _node(m, run_ids, regions, "loop", [entry, *inputs], _outputs(m, run_ids, regions), [block],
          trips=None, asks=True, entry=True, carried=len(inputs))  # fmt: skip


def _scan(m: Paths, run_ids: list[Any], regions: Sequence[RegionEvent], inputs: list[Var]) -> None:
    dim, reverse, count = regions[0].options
    inits, rows = inputs[:count], inputs[count:]
    dim %= len(rows[0].shape)
    length = rows[0].shape[dim]
    counter = Var(int64, (), "iteration")
    step = m.symbol(counter, -1, dict.fromkeys(run_ids, 0))
    carried = [Var(v.dtype, v.shape) for v in inits]
    with m.inside() as nodes:
        parts = []
        for row in rows:
            part = Var(row.dtype, tuple(n for axis, n in enumerate(row.shape) if axis != dim))
            attrs = {"dim": dim, "index": length - 1 - step if reverse else step}
            m.nodes.append(Node("op", [row], [part], attrs, REGISTRY["select"], site=regions[0].site))
            parts.append(part)
        outs = _follow(m, run_ids, regions, 0, [*carried, *parts])
    outputs = _outputs(m, run_ids, regions)
    block = Block([counter, *carried], nodes, outs)
    made = outputs
    after = []
    if reverse:
        made = [*outputs[:count], *[Var(v.dtype, v.shape) for v in outputs[count:]]]
        after = [Node("op", [unflipped], [out], {"dims": (0,)}, REGISTRY["flip"], site=regions[0].site)
                 for unflipped, out in zip(made[count:], outputs[count:], strict=True)]  # fmt: skip
    _node(m, run_ids, regions, "loop", inits, made, [block], trips=length, asks=False, entry=False, carried=count)
    m.nodes += after
