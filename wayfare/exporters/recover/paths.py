"""The way through several runs, event by event: ops, decisions, loops and control-flow functions become nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wayfare.compiler.structure import VALUE
from wayfare.core.spec import OF_NUMPY
from wayfare.core.symbolic_sizes import Dim
from wayfare.exporters.program import Block, Node, Program, Var
from wayfare.exporters.recover.constants import Differs, FromElsewhere, Hidden
from wayfare.exporters.recover.loop_detection import (
    Choice,
    Picked,
    Rolled,
    begins_otherwise,
    first_apart,
    rolled,
    with_parts_moved,
)
from wayfare.exporters.recover.loops import Loop
from wayfare.exporters.recover.merge import Merging, Who, refusal
from wayfare.exporters.recover.regions import merge_region
from wayfare.exporters.trace import Event, Look, Modules, Run, Trace


class Paths(Merging):
    """Adds the events to the merging of values."""

    def note_combinations(self, lists: Sequence[Sequence[Any]]) -> None:
        """Say of decisions one after the other which combinations of their ways nobody has seen."""
        ways = [{e.look.place: e.look.truth for e in events if isinstance(e, Choice)} for events in lists]
        places = list(dict.fromkeys(place for way in ways for place in way))
        seen = {tuple(way.get(place) for place in places) for way in ways}
        if len(places) > 1 and len(seen) < 2 ** len(places):
            lines = ", ".join(dict.fromkeys(str(place.site) for place in places))
            self.notes.append(f"{len(seen)} of {2 ** len(places)} combinations of the decisions at {lines} were seen")

    def follow(self, who: Who, traces: Sequence[Trace]) -> list[Var]:
        """Merge traces from beginning to end; the results. The nodes are added to the block at hand."""
        lists = rolled([t.events for t in traces])
        if not any(isinstance(r, tuple) for r in who):
            self.note_combinations(lists)
        rests = [Trace(t.inputs, events, t.results) for t, events in zip(traces, lists, strict=True)]
        while True:
            if not all(rest.events for rest in rests):
                if any(rest.events for rest in rests):
                    self._parted(who, rests)
                return self._results(who, rests)
            if len({rest.events[0].key for rest in rests}) > 1:
                self._parted(who, rests)
            events = [rest.events.pop(0) for rest in rests]
            if isinstance(events[0], Rolled) and begins_otherwise(events):
                for rest, event in zip(rests, events, strict=True):
                    rest.events[:0] = first_apart(event)
                continue
            try:
                if isinstance(events[0], Event):
                    self._op(who, events)
                elif isinstance(events[0], Rolled):
                    Loop(self, who, events).merge(rests)
                elif isinstance(events[0], Choice):
                    self._choose(who, events)
                elif not isinstance(events[0], Look):
                    merge_region(self, who, events)
                elif self._decides(who, events):
                    return self._branch(who, events, rests)
            except Differs as difference:
                raise _explained(f"{_name(events[0])} takes here", difference, events[0].site) from None

    def _results(self, who: Who, rests: Sequence[Trace]) -> list[Var]:
        found = []
        for number, values in enumerate(zip(*[t.results for t in rests], strict=True)):
            if len({v.dtype for v in values}) > 1 or len({v.ndim for v in values}) > 1:
                kinds = " and ".join(sorted({f"{v.dtype} of {v.ndim} dimensions" for v in values})[:2])
                raise refusal(f"result {number} of the function is {kinds} in different runs", None,
                              "Give the same dtype and rank on every way (.to, .unsqueeze).")  # fmt: skip
            try:
                found.append(self.var_of(who, values))
            except Differs as difference:
                raise _explained(f"result {number} of the function is", difference, None) from None
        return found

    def _parted(self, who: Who, rests: Sequence[Trace]) -> None:
        """Runs that do different things without having looked at a tensor."""
        heads = [rest.events[0] if rest.events else None for rest in rests]
        first = next(h for h in heads if h is not None)
        other = next((h for h in heads if h is None or h.key != first.key), None)
        site = first.site
        if isinstance(first, Event) and isinstance(other, Event) and first.step.op is other.step.op:
            one, two = (e.step.outputs[0].ndim for e in (first, other))
            if one != two and site == other.site:
                raise refusal(f"{first.step.name} gives {one} and {two} dimensions at different sizes", site,
                              "Say which dimensions are meant, so that there are always as many: squeeze(dim).")
        shown = "and the other is over" if other is None else f"the other goes on with {_name(other)} ({other.site})"
        raise refusal(
            f"Python took different ways at different sizes: one run goes on with {_name(first)} here, {shown}", site,
            "Where a loop depends on a size, write it with wf.scan or wf.while_loop; for an if on a size, export the "
            "two cases apart.",
        )

    # -- ops

    def _op(self, who: Who, events: Sequence[Event]) -> None:
        """The same op in all runs."""
        first = events[0]
        steps = [e.step for e in events]
        op = steps[0].op
        assert op is not None
        what = "inputs"
        try:
            if len({len(s.inputs) for s in steps}) > 1:
                raise Differs(f"{' and '.join(str(len(s.inputs)) for s in steps[:2])} tensors")
            inputs = []
            for number, values in enumerate(zip(*[s.inputs for s in steps], strict=True)):
                what = f"input {number}"
                inputs.append(self.var_of(who, values))
            attrs = {}
            for name in steps[0].attrs:
                what = name
                attrs[name] = self.attribute(who, [s.attrs[name] for s in steps])
            if isinstance(first, Picked) and isinstance(attrs["index"], Dim):
                index, count = attrs["index"], inputs[0].shape[0]
                attrs["index"] = index + (abs(index) - index) * count  # below 0 it is out of range
            what = "a result"
            outputs = [self.output(who, values) for values in zip(*[s.outputs for s in steps], strict=True)]
        except Differs as difference:
            raise _explained(f"{op.name} has for {what}", difference, first.site) from None
        fixed = all(v.fixed for v in inputs)
        for var in outputs:
            var.fixed = fixed and not any(isinstance(n, Dim) for n in var.shape)
        self.nodes.append(Node("op", inputs, outputs, attrs, op, site=first.site, path=first.path))

    # -- decisions

    def _decides(self, who: Who, looks: Sequence[Look]) -> bool:
        """Does a look matter? What is the same in every run of the model is no decision."""
        first = looks[0]
        var = self.var_of(who, [look.value for look in looks])
        if var.fixed:
            return False
        if first.truth is None:
            raise first.refusal()
        if len({look.truth for look in looks}) == 1:
            raise refusal(
                f"Python decides here by the value of a tensor, and it was {first.truth} in every example", first.site,
                "A file cannot raise: take the assert out." if first.site and first.site.text.startswith("assert")
                else f"Add an example for which it is {not first.truth}, or use wf.where or wf.cond.",
            )
        return True

    def _choose(self, who: Who, choices: Sequence[Choice]) -> None:
        """A decision whose two ways come together: an If. What it gives is found out when it is used."""
        looks = [choice.look for choice in choices]
        if not self._decides(who, looks):
            raise refusal("Python takes different ways here, but not by the value of a tensor", looks[0].site)
        blocks = [
            self._way(who, looks, [Trace([], choice.events, []) for choice in choices], truth)[0]
            for truth in (True, False)
        ]
        node = Node("if", [self._asked(who, looks)], [], blocks=blocks, site=looks[0].site, path=looks[0].path)
        self.nodes.append(node)
        self.decided(node, {r: bool(look.truth) for r, look in zip(who, looks, strict=True)})

    def _branch(self, who: Who, looks: Sequence[Look], rests: Sequence[Trace]) -> list[Var]:
        """A decision whose ways do not come together before the end: an If that gives the results."""
        (then, yes), (otherwise, no) = (self._way(who, looks, rests, truth) for truth in (True, False))
        outputs = []
        for values, a, b in zip(zip(*[t.results for t in rests], strict=True), yes, no, strict=True):
            if a.dtype is not b.dtype or len(a.shape) != len(b.shape):
                raise refusal("the two ways from here give results of different dtypes or ranks", looks[0].site)
            outputs.append(Var(OF_NUMPY[values[0].dtype], ()))
            self.shape_of(outputs[-1], who, [v.shape for v in values])
        condition = self._asked(who, looks)
        self.nodes.append(
            Node("if", [condition], outputs, blocks=[then, otherwise], site=looks[0].site, path=looks[0].path)
        )
        return outputs

    def _asked(self, who: Who, looks: Sequence[Look]) -> Var:
        return self.var_of(who, [look.value for look in looks])

    def _way(self, who: Who, looks: Sequence[Look], traces: Sequence[Trace], truth: bool) -> tuple[Block, list[Var]]:
        """One of the two ways, in the runs that took it."""
        mine = [n for n, look in enumerate(looks) if look.truth is truth]
        with self.inside() as nodes:
            results = self.follow([who[n] for n in mine], [traces[n] for n in mine])
        return Block([], nodes, results), results


def _explained(what: str, difference: Differs, site: Any) -> Exception:
    """The error for something that is not the same in all runs."""
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


def _name(event: Any) -> str:
    if isinstance(event, Event):
        return event.step.name
    if isinstance(event, (Look, Choice)):
        return "a decision"
    return "a loop" if isinstance(event, Rolled) else f"wf.{'while_loop' if event.kind == 'while' else event.kind}"


def _check_forms(structures: Sequence[Any]) -> None:
    """Every run must give the same form of results, with the same plain values in it: a file has only one."""
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
    """The values that are no tensors, in order."""
    if not isinstance(structure, tuple):
        return
    if len(structure) >= 3 and structure[1] is VALUE:
        yield structure[2]
        return
    for part in structure[1:]:
        yield from _plain_values(part[2] if structure[0] is dict else part)


def merged(runs: Sequence[Run], modules: Modules, input_names: list[str], axes: list[dict[int, str]],
           output_names: list[str]) -> Program:  # fmt: skip
    """The program of some runs. `axes` names the dynamic axes of each input; equal names are equal sizes."""
    _check_forms([r.structure for r in runs])
    paths = Paths(runs, modules)
    inputs: list[Var] = []
    sizes: dict[str, int] = {}
    for number, name in enumerate(input_names):
        values = [r.trace.inputs[number] for r in runs]
        var = Var(OF_NUMPY[values[0].dtype], (), name)
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
    block = Block(inputs, paths.nodes, results)
    notes = list(dict.fromkeys(paths.notes))
    return Program(block, paths.symbols, input_names, output_names, runs[0].structure, notes)
