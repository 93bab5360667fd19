"""Merging several runs step by step into one program: ops, branches, loops and control-flow calls become steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wayfare.compiler.structure import VALUE
from wayfare.core.symbolic_sizes import Dim
from wayfare.exporters.recover.constants import Differs, FromElsewhere, Hidden
from wayfare.exporters.recover.loop_detection import (
    BranchStep,
    LoopStep,
    PickStep,
    begins_otherwise,
    first_apart,
    with_loops,
    with_parts_moved,
)
from wayfare.exporters.recover.loops import Loop
from wayfare.exporters.recover.merge import Merging, RunIds, refusal
from wayfare.exporters.recover.regions import merge_region
from wayfare.exporters.trace import Modules, Run
from wayfare.exporters.trace_steps import ReadStep, TraceStep
from wayfare.ir.graph import Block, Step, Value, leaf, unbound
from wayfare.ir.program import Program


class Paths(Merging):
    """Merges steps; the base class merges values."""

    def note_combinations(self, lists: Sequence[Sequence[Any]]) -> None:
        """Note, for consecutive branches, how many combinations of their outcomes no run has shown."""
        ways = [{e.read.place: e.read.truth for e in steps if isinstance(e, BranchStep)} for steps in lists]
        places = list(dict.fromkeys(place for way in ways for place in way))
        seen = {tuple(way.get(place) for place in places) for way in ways}
        if len(places) > 1 and len(seen) < 2 ** len(places):
            lines = ", ".join(dict.fromkeys(str(place.site) for place in places))
            self.notes.append(f"{len(seen)} of {2 ** len(places)} combinations of the decisions at {lines} were seen")

    def follow(self, run_ids: RunIds, traces: Sequence[Block]) -> list[Value]:
        """Merge traces: add steps to the current block, return the results."""
        lists = with_loops([t.steps for t in traces])
        if not any(isinstance(r, tuple) for r in run_ids):
            self.note_combinations(lists)
        rests = [Block(t.inputs, steps, t.outputs) for t, steps in zip(traces, lists, strict=True)]
        while True:
            if not all(rest.steps for rest in rests):
                if any(rest.steps for rest in rests):
                    self._parted(run_ids, rests)
                return self._results(run_ids, rests)
            steps: list[Any] = [rest.steps[0] for rest in rests]
            if len({step.key for step in steps}) > 1:
                self._parted(run_ids, rests)
            for rest in rests:
                del rest.steps[0]
            if isinstance(steps[0], LoopStep) and begins_otherwise(steps):
                for rest, step in zip(rests, steps, strict=True):
                    rest.steps[:0] = first_apart(step)
                continue
            try:
                if steps[0].op is not None:
                    self._op(run_ids, steps)
                elif isinstance(steps[0], LoopStep):
                    Loop(self, run_ids, steps).merge(rests)
                elif isinstance(steps[0], BranchStep):
                    self._if_joined(run_ids, steps)
                elif not isinstance(steps[0], ReadStep):
                    merge_region(self, run_ids, steps)
                elif self._decides(run_ids, steps):
                    return self._if_to_end(run_ids, steps, rests)
            except Differs as difference:
                raise _explained(f"{_name(steps[0])} takes here", difference, steps[0].site) from None

    def _results(self, run_ids: RunIds, rests: Sequence[Block]) -> list[Value]:
        found = []
        for number, values in enumerate(zip(*[t.outputs for t in rests], strict=True)):
            if len({v.dtype for v in values}) > 1 or len({v.ndim for v in values}) > 1:
                kinds = " and ".join(sorted({f"{v.dtype} of {v.ndim} dimensions" for v in values})[:2])
                raise refusal(f"result {number} of the function is {kinds} in different runs", None,
                              "Give the same dtype and rank on every way (.to, .unsqueeze).")  # fmt: skip
            try:
                found.append(self.var_of(run_ids, values))
            except Differs as difference:
                raise _explained(f"result {number} of the function is", difference, None) from None
        return found

    def _parted(self, run_ids: RunIds, rests: Sequence[Block]) -> None:
        """Raise for runs that do different things although Python read no tensor."""
        heads: list[Any] = [rest.steps[0] if rest.steps else None for rest in rests]
        first = next(h for h in heads if h is not None)
        other = next((h for h in heads if h is None or h.key != first.key), None)
        site = first.site
        if other is not None and first.op is not None and first.op is other.op:
            one, two = (step.outputs[0].ndim for step in (first, other))
            if one != two and site == other.site:
                raise refusal(f"{first.name} gives {one} and {two} dimensions at different sizes", site,
                              "Say which dimensions are meant, so that their number is always the same: squeeze(dim).")
        shown = "and the other is over" if other is None else f"the other goes on with {_name(other)} ({other.site})"
        raise refusal(
            f"Python did different things at different sizes: one run goes on with {_name(first)} here, {shown}", site,
            "Where a loop depends on a size, write it with wf.scan or wf.while_loop; for an if on a size, export the "
            "two cases apart.",
        )

    # -- ops

    def _op(self, run_ids: RunIds, steps: Sequence[TraceStep]) -> None:
        """The same op in all runs."""
        first = steps[0]
        op = first.op
        assert op is not None
        what = "inputs"
        try:
            if len({len(s.inputs) for s in steps}) > 1:
                raise Differs(f"{' and '.join(str(len(s.inputs)) for s in steps[:2])} tensors")
            inputs = []
            for number, values in enumerate(zip(*[s.inputs for s in steps], strict=True)):
                what = f"input {number}"
                inputs.append(self.var_of(run_ids, values))
            attrs = {}
            for name in first.attrs:
                what = name
                attrs[name] = self.attribute(run_ids, [s.attrs[name] for s in steps])
            if isinstance(first, PickStep) and isinstance(attrs["index"], Dim):
                index, count = attrs["index"], inputs[0].shape[0]
                attrs["index"] = index + (abs(index) - index) * count  # makes a negative index out of range
            what = "a result"
            outputs = [self.output(run_ids, values) for values in zip(*[s.outputs for s in steps], strict=True)]
        except Differs as difference:
            raise _explained(f"{op.name} has for {what}", difference, first.site) from None
        if all(map(self._is_fixed, inputs)):
            self.fixed.update(v for v in outputs if not any(isinstance(n, Dim) for n in v.shape))
        self.steps.append(Step(op, tuple(inputs), attrs, site=first.site, path=first.path).makes(*outputs))

    def _is_fixed(self, var: Value) -> bool:
        """Is a variable the same in every call?"""
        return var.array is not None or var in self.fixed

    # -- branches

    def _decides(self, run_ids: RunIds, reads: Sequence[ReadStep]) -> bool:
        """Does a read depend on the model's inputs? If not, it is the same in every call and needs no branch."""
        first = reads[0]
        var = self.var_of(run_ids, [read.value for read in reads])
        if self._is_fixed(var):
            return False
        if first.truth is None:
            raise first.refusal()
        if len({read.truth for read in reads}) == 1:
            raise refusal(
                f"Python decides here by the value of a tensor, and it was {first.truth} in every example", first.site,
                "A file cannot raise: take the assert out." if first.site and first.site.text.startswith("assert")
                else f"Add an example for which it is {not first.truth}, or use wf.where or wf.cond.",
            )
        return True

    def _if_joined(self, run_ids: RunIds, choices: Sequence[BranchStep]) -> None:
        """An `if` whose branches rejoin. Its outputs are added when later steps use them."""
        reads = [choice.read for choice in choices]
        if not self._decides(run_ids, reads):
            raise refusal("Python takes different ways here, but not by the value of a tensor", reads[0].site)
        traces = [Block([], choice.steps, []) for choice in choices]
        blocks = tuple([self._way(run_ids, reads, traces, truth) for truth in (True, False)])
        branch = self._branch(run_ids, reads, blocks)
        self.decided(branch, {r: bool(read.truth) for r, read in zip(run_ids, reads, strict=True)})

    def _if_to_end(self, run_ids: RunIds, reads: Sequence[ReadStep], rests: Sequence[Block]) -> list[Value]:
        """An `if` whose branches do not rejoin before the end: its outputs are the results."""
        then, otherwise = (self._way(run_ids, reads, rests, truth) for truth in (True, False))
        outputs = []
        results = zip(*[t.outputs for t in rests], strict=True)
        for values, a, b in zip(results, then.outputs, otherwise.outputs, strict=True):
            if a.dtype != b.dtype or a.ndim != b.ndim:
                raise refusal("the two ways from here give results of different dtypes or ranks", reads[0].site)
            outputs.append(unbound((), values[0].dtype))
            self.shape_of(outputs[-1], run_ids, [v.shape for v in values])
        self._branch(run_ids, reads, (then, otherwise)).makes(*outputs)
        return outputs

    def _branch(self, run_ids: RunIds, reads: Sequence[ReadStep], blocks: tuple[Block, ...]) -> Step:
        """Add an `if` to the current block."""
        condition = self.var_of(run_ids, [read.value for read in reads])
        step = Step(None, (condition,), {}, "if", blocks=blocks, site=reads[0].site, path=reads[0].path)
        self.steps.append(step)
        return step

    def _way(self, run_ids: RunIds, reads: Sequence[ReadStep], traces: Sequence[Block], truth: bool) -> Block:
        """One of the two branches, from the runs that took it."""
        mine = [n for n, read in enumerate(reads) if read.truth is truth]
        with self.inside() as steps:
            results = self.follow([run_ids[n] for n in mine], [traces[n] for n in mine])
        return Block([], steps, results)


def _explained(what: str, difference: Differs, site: Any) -> Exception:
    """The error for something that differs between runs in a way that was not understood."""
    if isinstance(difference, Hidden):
        return refusal(f"{what} {difference}", site, difference.fix)
    if isinstance(difference, FromElsewhere):
        return refusal(
            f"{what} what different steps made in different runs, and no decision on a tensor says which", site,
            "Choose it with wf.where or wf.cond, carry it with wf.scan or wf.while_loop, or add examples.",
        )
    return refusal(
        f"{what} {difference} in different runs, which follows from the sizes in no way that was understood", site,
        difference.fix or "Compute it with tensor operations (wf.tensor(x.shape[0]) is a tensor), or by simpler "
        "arithmetic on `.shape`; Python's own random numbers, counters and clocks have no place in a file.",
    )


def _name(step: Any) -> str:
    if step.op is not None:
        return str(step.op.name)
    if isinstance(step, (ReadStep, BranchStep)):
        return "a decision"
    return "a loop" if isinstance(step, LoopStep) else f"wf.{'while_loop' if step.kind == 'while' else step.kind}"


def _check_forms(structures: Sequence[Any]) -> None:
    """Every run must return the same structure with the same plain values: a file has only one."""
    for other in structures[1:]:
        if other == structures[0]:
            continue
        first, second = list(_plain_values(structures[0])), list(_plain_values(other))
        pair = next(((a, b) for a, b in zip(first, second, strict=False) if a != b), None)
        if pair is not None and len(first) == len(second):
            raise refusal(f"the function returns the plain value {pair[0]!r} in one run and {pair[1]!r} in another, "
                          "and a file would keep one of them", None,
                          "Return it as a tensor (wf.tensor), or leave it out.")  # fmt: skip
        raise refusal("the function returns other tuples, lists or dictionaries in one run than in another", None,
                      "Give the same form on every way.")  # fmt: skip


def _plain_values(structure: Any) -> Iterator[Any]:
    """The values of a structure that are not tensors, in order."""
    if not isinstance(structure, tuple):
        return
    if len(structure) >= 3 and structure[1] is VALUE:
        yield structure[2]
        return
    for part in structure[1:]:
        yield from _plain_values(part[2] if structure[0] is dict else part)


def merged(runs: Sequence[Run], modules: Modules, input_names: list[str], axes: list[dict[int, str]],
           output_names: list[str]) -> Program:  # fmt: skip
    """The program of some runs. `axes` names the dynamic axes of each input; equal names mean equal sizes."""
    _check_forms([r.structure for r in runs])
    paths = Paths(runs, modules)
    inputs: list[Value] = []
    sizes: dict[str, int] = {}
    for number, name in enumerate(input_names):
        values = [r.trace.inputs[number] for r in runs]
        var = leaf("input", name, (), values[0].dtype)
        shape: list[int] = list(values[0].shape)
        for axis, axis_name in axes[number].items():
            if axis_name not in sizes:
                sizes[axis_name] = paths.symbol(var, axis, {r: v.shape[axis] for r, v in enumerate(values)})
            shape[axis] = sizes[axis_name]
        var.shape = tuple(shape)
        for r, v in enumerate(values):
            paths.known[r][id(v)] = var
        inputs.append(var)
    results = paths.follow(list(range(len(runs))), [with_parts_moved(r.trace) for r in runs])
    block = Block(inputs, paths.steps, results)
    notes = list(dict.fromkeys(paths.notes))
    return Program(block, paths.symbols, input_names, output_names, runs[0].structure, notes)
