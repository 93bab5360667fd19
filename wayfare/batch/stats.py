"""Statistics of a batching session: counts, times, and why two calls did not run together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wayfare.batch.paths.stats import PathStats
from wayfare.batch.record.signature import OWN_LEAF, Signature
from wayfare.batch.workers.stats import WorkerStats
from wayfare.core.errors import ArgumentError
from wayfare.core.tensor import Tensor


@dataclass
class SignatureStats:
    """The calls of one signature: how many there were, in how many groups, and the size of the largest group."""

    name: str
    nodes: int
    groups: int
    largest: int


@dataclass
class Stats:
    """What was recorded and run. `nodes` counts calls, `kinds` has one entry for each signature."""

    nodes: int = 0
    groups: int = 0
    rounds: int = 0
    gathers: int = 0
    copies_avoided: int = 0
    seconds: float = 0.0
    seconds_scheduling: float = 0.0
    seconds_running: float = 0.0
    kinds: list[SignatureStats] = field(default_factory=list)
    # Examples that ran as a plain loop.
    looped: int = 0
    # Examples that ran along recorded paths, without Python; None if the function has none.
    paths: PathStats | None = None
    # What ran in worker processes; None without `workers=`.
    workers: WorkerStats | None = None
    # Lines of the user's code where examples waited for a value, and how often.
    waits: dict[str, int] = field(default_factory=dict)
    profile: Any = field(default="", repr=False)

    @property
    def account(self) -> str:
        """What an example costs batched and as a loop, if that was measured; and why examples run as a loop, if so."""
        return str(self.profile)

    @property
    def mean_group(self) -> float:
        """The mean number of calls in a group."""
        return self.nodes / self.groups if self.groups else 0.0

    @property
    def seconds_recording(self) -> float:
        """The time in which the Python code of the examples ran."""
        return max(self.seconds - self.seconds_scheduling - self.seconds_running, 0.0)

    def why_apart(self, first: Tensor, second: Tensor) -> str:
        """Why the calls that made two tensors did not run in one group; or that they did."""
        found = [getattr(t, "_handle", None) for t in (first, second)]
        for t, story in zip((first, second), found, strict=True):
            if not isinstance(t, Tensor) or story is None or story is OWN_LEAF:
                raise ArgumentError("why_apart: takes two tensors that were computed in a map or a batching block, and "
                                    f"one was not: {type(t).__name__}")  # fmt: skip
        stories = [_call_info(story) for story in found]
        return compare(*stories)

    def __str__(self) -> str:
        lines = [
            f"{self.nodes} calls in {self.groups} groups, {self.mean_group:.1f} a group, {self.rounds} "
            f"round{'s' * (self.rounds != 1)}",
            f"inputs: {self.gathers} gathered, {self.copies_avoided} already contiguous",
            f"time: recording {1e3 * self.seconds_recording:.1f} ms, scheduling {1e3 * self.seconds_scheduling:.1f} "
            f"ms, running {1e3 * self.seconds_running:.1f} ms",
        ]
        if not self.nodes and (self.looped or self.paths is not None):
            lines = [f"{self.looped} example{'s' * (self.looped != 1)} ran as a plain loop"] if self.looped else []
        if self.paths is not None:
            lines += self.paths.lines()
        if self.workers is not None:
            lines += self.workers.lines()
        if self.waits:
            most = sorted(self.waits.items(), key=lambda item: -item[1])[:3]
            lines.append("waits: " + ", ".join([f"{line} {count} times" for line, count in most]))
        if self.account:
            lines.append(self.account)
        if self.kinds:
            lines.append(f"{'what':<32}{'calls':>10}{'groups':>10}{'a group':>10}{'largest':>10}")
            shown = sorted(self.kinds, key=lambda k: -k.nodes)
            for k in shown[:12]:
                name = k.name if len(k.name) <= 31 else k.name[:30] + "…"
                lines.append(f"{name:<32}{k.nodes:>10}{k.groups:>10}{k.nodes / max(k.groups, 1):>10.1f}{k.largest:>10}")
            if len(shown) > 12:
                rest = shown[12:]
                nodes, groups = sum(k.nodes for k in rest), sum(k.groups for k in rest)
                name = f"{len(rest)} more"
                lines.append(f"{name:<32}{nodes:>10}{groups:>10}{nodes / max(groups, 1):>10.1f}"
                             f"{max(k.largest for k in rest):>10}")  # fmt: skip
        return "\n".join(lines)


@dataclass
class CallInfo:
    """What is remembered about the call that made a tensor."""

    signature: Signature
    group: int
    round: int


def _call_info(what: Any) -> CallInfo:
    if isinstance(what, CallInfo):
        return what
    call = what.call
    group = call.group
    return CallInfo(call.signature, -1 if group is None else group.number, -1 if group is None else group.round)


def compare(a: CallInfo, b: CallInfo) -> str:
    """Why two calls did not run in one group; or that they did."""
    if a.group == b.group and a.group >= 0:
        return f"they ran together, in one group of {a.signature.name}"
    first, second = a.signature, b.signature
    if first.name != second.name:
        return f"they are different ops: {first.name} and {second.name}"
    if first.target is not second.target and first.key[1] is not second.key[1]:
        return f"both are {first.name}, but of two objects, each with weights of its own"
    if first is not second:
        return _difference(first, second)
    if a.round != b.round:
        return (f"both are {first.name}, but they ran in rounds {a.round + 1} and {b.round + 1}: a value was read (or "
                "the limit reached) in between")  # fmt: skip
    return f"both are {first.name}, but at different depths: one needs results that are computed after the other"


def _difference(first: Signature, second: Signature) -> str:
    name = first.name
    if first.grad != second.grad:
        return f"both are {name}, but one was recorded under no_grad"
    if len(first.pattern) != len(second.pattern):
        return f"both are {name}, but of {len(first.pattern)} and {len(second.pattern)} inputs"
    for position, (t, u) in enumerate(zip(first.pattern, second.pattern, strict=True)):
        if t is not u:
            return f"both are {name}, but their input {position} is not the same shared tensor"
    for attribute in sorted(first.attrs.keys() | second.attrs.keys()):
        mine, other = first.attrs.get(attribute), second.attrs.get(attribute)
        if mine != other or type(mine) is not type(other):
            return f"both are {name}, but with {attribute}={mine} and {attribute}={other}"
    ours, theirs = ([row for row in signature.key if row.__class__.__name__ == "Row"] for signature in (first, second))
    return f"both are {name}, but of different shapes or dtypes: {ours} and {theirs}"
