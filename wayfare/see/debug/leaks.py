"""`leaks`: which tensors are alive, on which line they were made, who keeps them, and what has grown since."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from wayfare.core.callsite import Site, current_site
from wayfare.core.errors import ArgumentTypeError, OperationError
from wayfare.core.format import bytes_text, counted
from wayfare.core.mode import Watcher
from wayfare.core.node import Node
from wayfare.core.tensor import Tensor
from wayfare.core.walk import split_edge
from wayfare.nn import Module
from wayfare.see.debug.holders import Holder, Names, holders_of
from wayfare.see.debug.watching import looking_on
from wayfare.see.graph.node_info import CallSites, CountedOnce, arrays_in

# The holder is searched for this many tensors of one line.
_ASKED = 3
# A line that is in one graph this often, each time with the previous result, ran in a loop.
_OFTEN = 8
# Lines that the error of a full device names, and lists.
_NAMED, _LISTED = 3, 10
# With more tensors than this, those that are gone are removed.
_FEW = 10_000


@dataclass
class Row:
    """The live tensors that one line made (or, where the line is not known, that one holder keeps)."""

    site: Site | None
    holder: Holder | None
    tensors: int = 0
    bytes: int = 0
    # The graph that only these keep alive: its nodes, and the memory they keep for backward.
    nodes: int = 0
    graph_bytes: int = 0
    # Where the line is not known: each tensor by its address, and its bytes.
    members: dict[int, int] = field(default_factory=dict)
    # How often an op of a line was run with the same parameters.
    again: Counter[tuple[Site, str, tuple[int, ...]]] = field(default_factory=Counter)

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that finds the same row in another snapshot."""
        if self.site is not None:
            return (self.site.filename, self.site.line)
        return () if self.holder is None else (self.holder.name, self.holder.kind)

    def __str__(self) -> str:
        where = str(self.site) if self.site is not None else "made on a line that is not known"
        text = f"  {where}: {counted(self.tensors, 'tensor')} of {bytes_text(self.bytes)}"
        if self.nodes:
            text += f", with a graph of {counted(self.nodes, 'node')} that keeps {bytes_text(self.graph_bytes)}"
        if self.site is not None and self.site.text:
            text += f"\n      {self.site.text}"
        if self.holder is not None:
            text += f"\n      held by {self.holder}"
        return text + self._advice()

    def _advice(self) -> str:
        (line, op, _), times = self.again.most_common(1)[0] if self.again else ((None, "", ()), 0)
        if times >= _OFTEN * max(self.tensors, 1):
            return (f"\n      {op} of {line} is {times} times in the graph, with the same parameters: it goes back "
                    "over many steps,\n      and grows with each unless what is carried on is .detach()ed")  # fmt: skip
        if self.nodes and self.tensors >= _OFTEN:
            return "\n      each keeps its whole graph: collect .item() or .detach() instead"
        return ""


_NOTHING = Row(None, None)


class Leaks:
    """What is alive at one moment, or what has grown between two: rows, the largest first. It holds no tensor."""

    def __init__(self, rows: list[Row], *, growth: bool = False) -> None:
        self.rows = rows
        self.growth = growth
        # Weak references to the tensors that were alive: a tensor with another holder is not a new tensor.
        self._seen: dict[int, weakref.ref[Tensor]] = {}
        self._origins: Origins | None = None
        self._looking: looking_on | None = None

    @property
    def tensors(self) -> int:
        """How many tensors."""
        return sum(row.tensors for row in self.rows)

    @property
    def nodes(self) -> int:
        """How many nodes of graphs."""
        return sum(row.nodes for row in self.rows)

    @property
    def bytes(self) -> int:
        """How much memory, of tensors and of what graphs keep. Memory that is shared counts once."""
        return sum(row.bytes + row.graph_bytes for row in self.rows)

    def since(self, before: Leaks) -> Leaks:
        """What has grown since an earlier snapshot, line by line."""
        if not isinstance(before, Leaks):
            raise ArgumentTypeError(f"leaks: since takes an earlier wf.debug.leaks(), not {type(before).__name__}")
        old = {row.key: row for row in before.rows}
        rows = []
        for row in self.rows:
            was = old.get(row.key, _NOTHING)
            tensors, size = row.tensors - was.tensors, row.bytes - was.bytes
            if row.site is None:
                # A tensor that replaced another, or only has another holder now, does not count.
                fresh = [size for at, size in row.members.items() if not before._saw(at)]
                tensors, size = min(tensors, len(fresh)), min(size, sum(fresh))
            row = replace(row, tensors=tensors, bytes=size, nodes=row.nodes - was.nodes,
                          graph_bytes=row.graph_bytes - was.graph_bytes)  # fmt: skip
            if row.tensors > 0 or row.nodes > 0 or row.bytes + row.graph_bytes > 0:
                rows.append(row)
        return Leaks(_sorted(rows), growth=True)

    def _saw(self, at: int) -> bool:
        """Was the tensor at this address alive then, and has it been since?"""
        reference = self._seen.get(at)
        return reference is not None and reference() is not None

    def __enter__(self) -> Leaks:
        if self._looking is not None or self.growth:
            raise OperationError("leaks: this block is in use or was used already", fix="Make a new wf.debug.leaks().")
        self._origins = Origins()
        self._looking = looking_on(self._origins)
        self._looking.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._looking is not None
        self._looking.__exit__(*error)
        self.rows, self.growth = snapshot(self._origins).since(self).rows, True
        self._looking = self._origins = None

    def __str__(self) -> str:
        if not self.rows:
            return "nothing has grown" if self.growth else "no tensor is alive"
        more = "more " if self.growth else ""
        graphs = f"{counted(self.nodes, 'node')} of graphs"
        head = f"{counted(self.tensors, f'{more}tensor')} and {graphs}, {bytes_text(self.bytes)}"
        return "\n".join([head, *map(str, self.rows)])

    __repr__ = __str__


class Origins(Watcher):
    """Notes the lines of tensors without a node: those that are made while no gradient is recorded."""

    def __init__(self) -> None:
        self._sites: dict[int, tuple[weakref.ref[Any], Site]] = {}
        self._prune_at = _FEW

    def ran(self, op: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        """An op has run on tensors."""
        for out in outputs:
            if out.grad_fn is None:
                site, key = current_site(), id(out)
                if site is not None:
                    self._sites[key] = (weakref.ref(out), site)
        if len(self._sites) > self._prune_at:
            self._sites = {key: entry for key, entry in self._sites.items() if entry[0]() is not None}
            self._prune_at = 2 * len(self._sites) + _FEW

    def of(self, tensor: Any) -> Site | None:
        """The line that made a tensor."""
        found = self._sites.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None


def leaks() -> Leaks:
    """What is alive now: live tensors by the line that made them, their graphs, and who holds them.

    `print(wf.debug.leaks().since(before))` shows what has grown since `before = wf.debug.leaks()`, and so does

        with wf.debug.leaks() as found: …

    when the block has ended; inside it the lines of what is made without a gradient are noted too.
    """
    return snapshot(None)


def snapshot(origins: Origins | None, on: str | None = None) -> Leaks:
    """Look at everything that is alive; with `on` at what is on this type of device."""
    gc.collect()
    names = Names()
    tensors, nodes, modules = _alive(Tensor, Node, Module)
    if on is not None:
        tensors = [tensor for tensor in tensors if hasattr(tensor, "_array") and tensor.device.type == on]
    # What a graph holds is reported for the tensor at its end.
    ours = {id(tensors), id(nodes), id(modules), *(id(node.edges) for node in nodes)}
    rows: dict[Any, Row] = {}
    memory = CountedOnce(on)
    places = CallSites()
    sites = [_site_of(tensor, places, origins) for tensor in tensors]
    # The holder is searched for a few tensors of each line, and for all tensors without a line.
    asked: Counter[Site] = Counter()
    sample: list[int] = []
    for number, site in enumerate(sites):
        if site is None or asked[site] < _ASKED:
            sample.append(number)
        if site is not None:
            asked[site] += 1
    models = _models(modules)
    some = [models.get(id(tensors[number]), (tensors[number], ""))[0] for number in sample]
    held: dict[int, Holder | None] = {}
    for number, holder in zip(sample, holders_of(some, names, ours | {id(some), id(models)}), strict=True):
        path = models.get(id(tensors[number]), (None, ""))[1]
        held[number] = holder if holder is None or not path else holder._replace(path=f"{holder.path}.{path}")
    groups: list[tuple[int, Row]] = []
    answers: dict[Any, list[Holder]] = {}
    for number, site in enumerate(sites):
        holder = held.get(number)
        if holder is not None and holder.internal:
            continue
        row = Row(site, holder)
        row = rows.setdefault(row.key, row)
        if holder is not None:
            answers.setdefault(row.key, []).append(holder)
        row.tensors += 1
        groups.append((number, row))
    # One tensor of a list may have a name of its own, so the most common holder is named.
    for key, found_here in answers.items():
        often = Counter((holder.name, holder.kind) for holder in found_here)
        # If every answer is different, what holds several tensors goes before the name of a single one.
        rows[key].holder = max(found_here, key=lambda h: (often[h.name, h.kind], h.kind != "Tensor"))
    # Leaves first: the memory is theirs, although graphs refer to it, too.
    for number, row in sorted(groups, key=lambda pair: tensors[pair[0]].grad_fn is not None):
        size = memory.new(tensors[number]._array)
        row.bytes += size
        if row.site is None:
            row.members[id(tensors[number])] = size
    _count_graphs(tensors, groups, nodes, rows, memory, places)
    found = Leaks(_sorted([row for row in rows.values() if row.tensors or row.nodes]))
    found._seen = {id(tensor): weakref.ref(tensor) for tensor in tensors}
    return found


def held_on(device: str) -> tuple[str, str]:
    """What is alive on a type of device, for the error that it is full: the largest in a few words, and more of it."""
    rows = [row for row in snapshot(None, device).rows if row.bytes + row.graph_bytes]
    words = []
    for row in rows[:_NAMED]:
        where = str(row.site or row.holder or "a line that is not known")
        graph = f" and a graph of {bytes_text(row.graph_bytes)}" if row.graph_bytes else ""
        words.append(f"{where} ({counted(row.tensors, 'tensor')} of {bytes_text(row.bytes)}{graph})")
    listed = "\n".join(map(str, rows[:_LISTED]))
    return ", ".join(words), f"Alive on {device}, the largest first:\n{listed}" if rows else ""


def _alive(*kinds: type) -> list[list[Any]]:
    """All objects of some kinds."""
    found: list[list[Any]] = [[] for _ in kinds]
    # By type, looked up once for each: isinstance would run code of foreign objects, which may warn.
    lists: dict[type, list[Any] | None] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in lists:
            lists[kind] = next((found[i] for i, wanted in enumerate(kinds) if issubclass(kind, wanted)), None)
        into = lists[kind]
        if into is not None:
            into.append(thing)
    return found


def _models(modules: list[Any]) -> dict[int, tuple[Any, str]]:
    """For each parameter, buffer and gradient of a model: the outermost module it is in, and its path there."""
    inside = {id(child) for module in modules for child in module.children()}
    found: dict[int, tuple[Any, str]] = {}
    for module in modules:
        if id(module) not in inside:
            for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                found[id(tensor)] = (module, path)
                found[id(tensor._grad)] = (module, f"{path}.grad")
    found.pop(id(None), None)
    return found


def _count_graphs(
    tensors: list[Any], groups: list[tuple[int, Row]], nodes: list[Any], rows: dict[Any, Row], memory: CountedOnce,
    places: CallSites,
) -> None:  # fmt: skip
    """Add to each row the nodes that its tensors keep alive. A node belongs to the oldest result that leads to it."""
    seen: set[int] = set()
    ends = [(split_edge(tensors[n]._edge)[0], row) for n, row in groups if tensors[n]._edge is not None]
    for node, row in sorted(ends, key=lambda end: end[0].number):
        _walk(node, row, seen, memory, places)
    # Other nodes are held directly, by no tensor: the youngest leads to the others.
    for node in sorted(nodes, key=lambda node: -node.number):
        if id(node) not in seen:
            row = Row(places.of(node), None)
            _walk(node, rows.setdefault(row.key, row), seen, memory, places)


def _walk(start: Any, row: Row, seen: set[int], memory: CountedOnce, places: CallSites) -> None:
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, Node):
            continue
        seen.add(id(node))
        row.nodes += 1
        row.graph_bytes += sum(memory.new(value) for value in arrays_in(node.kept))
        site = places.of(node)
        sources = [split_edge(edge)[0] for edge in node.edges if edge is not None]
        leaves = tuple([id(source) for source in sources if not isinstance(source, Node)])
        if site is not None and leaves:
            row.again[site, node.op.name, leaves] += 1
        waiting += sources


def _site_of(tensor: Any, places: CallSites, origins: Origins | None) -> Site | None:
    node = tensor.grad_fn
    if node is not None:
        return places.of(node)
    return None if origins is None else origins.of(tensor)


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.bytes + row.graph_bytes, row.nodes, row.tensors), reverse=True)

