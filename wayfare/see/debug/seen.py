"""A run as objects: its values, its steps, and what they add up to. All of it is read from the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wayfare.core.format import bytes_text, counted, cut, plain
from wayfare.see.run_document import OP

KINDS = {"f": "forward", "b": "backward", "a": "gradient", "d": "decision", "g": "group"}


class Value:
    """One value of a run: a leaf, or what an op made."""

    def __init__(self, document: dict[str, Any], number: int) -> None:
        self._document = document
        self.number = number

    def _column(self, name: str) -> Any:
        return self._document["nodes"][name][self.number]

    def _text(self, name: str) -> str:
        at = self._column(name)
        return "" if at < 0 else str(self._document["strings"][at])

    def _listed(self, column: str, table: str) -> Any:
        at = self._column(column)
        return None if at < 0 else self._document[table][at]

    @property
    def op(self) -> str:
        """The op that made it; "leaf" or "input" for one that was there."""
        return self._text("op")

    @property
    def name(self) -> str:
        """The name of a parameter, else `%3`."""
        return self._text("name") or f"%{self.number}"

    @property
    def is_leaf(self) -> bool:
        """Was it there before the block?"""
        return bool(self._column("kind"))

    @property
    def inputs(self) -> list[Value]:
        """The values it was computed from."""
        return [Value(self._document, i) for i in self._column("inputs") if i >= 0]

    @property
    def attrs(self) -> str:
        """The arguments of the op, as text."""
        return self._text("attrs")

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        return tuple(self._column("shape"))

    @property
    def dtype(self) -> str:
        """`f32`, `i64`, …"""
        return self._text("dtype")

    @property
    def spec(self) -> str:
        """`f32[8,3]`."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def line(self) -> str:
        """The user's line: `train.py:12`; empty for a leaf."""
        return line_text(self._document, self._column("site"))

    @property
    def code(self) -> str:
        """The text of that line."""
        return code_text(self._document, self._column("site"))

    @property
    def module(self) -> str:
        """The path of the module whose call made it; empty outside of all."""
        return module_text(self._document, self._column("call"))

    @property
    def example(self) -> int | None:
        """The example of a `wf.map` it belongs to."""
        found = self._column("example")
        return None if found < 0 else int(found)

    @property
    def saved(self) -> int:
        """Bytes that were kept for its gradient rule."""
        return int(self._column("saved"))

    @property
    def stats(self) -> Statistics | None:
        """Statistics of its elements."""
        return _statistics(self._listed("stats", "stats"))

    @property
    def grad(self) -> Statistics | None:
        """Statistics of its gradient; None if none came to it."""
        return _statistics(self._listed("grad", "stats"))

    @property
    def elements(self) -> Any:
        """Its elements as nested lists, "…" where some are left out; None if they were not kept."""
        found = self._listed("value", "values")
        return None if found is None else found["text"]

    @property
    def grad_elements(self) -> Any:
        """The same of its gradient."""
        found = self._listed("gradvalue", "values")
        return None if found is None else found["text"]

    def __repr__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return plain(f"<{self.name} {self.op} {self.spec}{where}>")


class Values(Sequence[Value]):
    """All values of a run, by number."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def __len__(self) -> int:
        return len(self._document["nodes"]["op"])

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [Value(self._document, i) for i in range(*number.indices(len(self)))]
        size = len(self)
        if not -size <= number < size:
            raise IndexError(f"there are {size} values, and no number {number}")
        return Value(self._document, number % size)


@dataclass(frozen=True)
class Statistics:
    """The numbers of one value. For a large value, zeros and histogram are estimated from a sample."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nans: int
    infinite: int
    zeros: int
    histogram: tuple[int, ...]


def _statistics(row: Any) -> Statistics | None:
    if row is None:
        return None
    low, high, mean, deviation, nans, infinite, zeros, counts = row[:8]
    return Statistics(low, high, mean, deviation, nans, infinite, zeros, tuple(counts))


@dataclass(frozen=True)
class Step:
    """One thing that happened."""

    # "forward", "backward", "gradient" (summed into a leaf), "decision" or "group"
    kind: str
    # The value it is about; None for a group.
    value: Value | None
    # Bytes alive when it had happened.
    memory: int
    # What Python did and saw, for a decision: `bool()` and `True`; the name of a group.
    how: str = ""
    outcome: str = ""
    # The user's line, its text, and the example of a `wf.map` that took the step.
    line: str = ""
    code: str = ""
    example: int | None = None


def steps_of(document: dict[str, Any], chosen: slice = slice(None)) -> Iterator[Step]:
    """The steps of a run in the order of time, or some of them."""
    strings = document["strings"]
    batching = document.get("batching")
    firsts: dict[int, int] = {}
    for call, group in enumerate(batching["calls"]["group"] if batching else ()):
        firsts.setdefault(group, call)
    events = document["events"]
    # The document of a graph that was not recorded has no memory.
    alive = document["memory"] or [0] * len(events)
    for event, memory in zip(events[chosen], alive[chosen], strict=False):
        kind, at = KINDS.get(event[0], event[0]), event[1]
        if kind == "group":
            group = document["batching"]["groups"][at]
            calls = counted(group["size"], "call")
            site = document["batching"]["calls"]["site"][firsts[at]]
            where = (line_text(document, site), code_text(document, site))
            yield Step(kind, None, memory, strings[group["name"]], calls, *where)
            continue
        value = None if at < 0 else Value(document, at)
        if kind == "decision":
            where = (line_text(document, event[4]), code_text(document, event[4]))
            example = None if event[5] < 0 else event[5]
            yield Step(kind, value, memory, strings[event[2]], strings[event[3]], *where, example)
        elif value is not None:
            yield Step(kind, value, memory, "", "", value.line, value.code, value.example)


def line_text(document: dict[str, Any], site: int) -> str:
    """`train.py:12`."""
    if site < 0:
        return ""
    file, line, _ = document["sites"][site]
    return f"{document['files'][file]['name']}:{line}"


def module_text(document: dict[str, Any], call: int) -> str:
    """The path of the module of a call, or its class if it is the outermost one; empty outside of all."""
    if call < 0:
        return ""
    path, kind, _ = document["modules"][document["calls"][call][0]]
    return str(document["strings"][path] or document["strings"][kind])


def code_text(document: dict[str, Any], site: int) -> str:
    """The text of a line, stripped."""
    if site < 0:
        return ""
    file, line, _ = document["sites"][site]
    return str(document["files"][file]["code"].get(str(line), "")).strip()


@dataclass(frozen=True)
class Summary:
    """What a run adds up to."""

    values: int
    forward: int
    backward: int
    decisions: int
    groups: int
    bytes: int
    saved: int
    peak: int
    by_op: dict[str, int]
    by_module: dict[str, int]
    by_line: dict[str, int]

    def __str__(self) -> str:
        lines = [
            f"{counted(self.values, 'value')}, {counted(self.forward, 'step')} forward, {self.backward:,} backward, "
            f"{counted(self.decisions, 'decision')}",
            f"made {bytes_text(self.bytes)}, kept for backward {bytes_text(self.saved)}, most alive "
            f"{bytes_text(self.peak)}",
        ]
        for title, counts in (("op", self.by_op), ("module", self.by_module), ("line", self.by_line)):
            if counts:
                lines.append(f"{'by ' + title:<40}{'ops':>8}")
                shown = sorted(counts.items(), key=lambda item: -item[1])
                lines += [f"  {cut(plain(name), 37):<38}{count:>8}" for name, count in shown[:8]]
                if len(shown) > 8:
                    lines.append(f"  {f'{len(shown) - 8} more':<38}{sum(c for _, c in shown[8:]):>8}")
        return "\n".join(lines)


def summary_of(document: dict[str, Any]) -> Summary:
    """The counts of a run."""
    nodes = document["nodes"]
    kinds = [event[0] for event in document["events"]]
    made = sum(size for size, kind in zip(nodes["bytes"], nodes["kind"], strict=True) if kind == OP)
    # The first output of each op.
    firsts = [at for at, kind in enumerate(nodes["kind"]) if kind == OP and nodes["out"][at] == 0]
    ops = Counter(nodes["op"][at] for at in firsts)
    by_op = {str(document["strings"][op]): count for op, count in ops.items()}
    by_line: Counter[str] = Counter()
    for site, count in Counter(nodes["site"][at] for at in firsts).items():
        by_line[line_text(document, site)] += count
    by_module: Counter[str] = Counter()
    for call, count in Counter(nodes["call"][at] for at in firsts).items():
        by_module[module_text(document, call)] += count
    del by_line[""], by_module[""]
    return Summary(
        len(nodes["op"]), kinds.count("f"), kinds.count("b"), kinds.count("d"), kinds.count("g"), made,
        sum(nodes["saved"]), max(document["memory"], default=0), by_op, dict(by_module), dict(by_line),
    )  # fmt: skip
