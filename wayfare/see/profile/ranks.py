"""`wf.profile.merge([...])`: the traces of several ranks side by side, and who waited for whom.

The clocks of ranks differ, and stand still while a profile does its own work. What all ranks do together tells the
time: a collective call ends on all of them at once, when the last one has come and the data have moved. So each trace
is stretched or shifted between such calls, and the order of its events stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, ArgumentTypeError, MissingFileError
from wayfare.core.format import share_text, time_text
from wayfare.io.replace import replace_text
from wayfare.see.pages.markup import Markup, frame, join, muted, row, sheet, standalone, tag
from wayfare.see.pages.parts import part

__all__ = ["RankTraces", "Wait", "merge"]

_WIDTH, _ROW = 1000, 34
_STYLE = """
body { margin: 0 auto; max-width: 1200px; padding: 1.5em; background: light-dark(#ffffff, #16191f); }
svg.ranks { width: 100%; height: auto; } svg.ranks text { font: 13px system-ui, sans-serif; fill: currentColor; }
svg.ranks .busy { fill: light-dark(#4c78a8, #6f9bd1); } svg.ranks .wait { fill: light-dark(#e45756, #ff8a80); }
svg.ranks .sent { fill: light-dark(#b7b7b7, #777777); } svg.ranks .last { stroke: currentColor; stroke-width: 1; }
.key { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.4em 0 1.2em; vertical-align: -0.1em; }
"""


@dataclass(frozen=True)
class Wait:
    """One call in which ranks met: when each of them came, and when it was through, in seconds of the common clock."""

    call: str
    arrivals: tuple[float, ...]
    end: float

    @property
    def last(self) -> int:
        """The rank that came last: the others waited for it."""
        return int(np.argmax(self.arrivals))

    def late(self, rank: int) -> float:
        """How long a rank waited for the last one."""
        return self.arrivals[self.last] - self.arrivals[rank]

    @property
    def sending(self) -> float:
        """How long the call took when all were there."""
        return self.end - max(self.arrivals)


class RankTraces:
    """Traces of several ranks on one clock. `print` it for a table, `save` it as a page, `trace` it for Perfetto."""

    def __init__(self, traces: Sequence[dict[str, Any]], ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.note = ""
        self._events = [[e for e in trace["traceEvents"] if e.get("ph") == "X"] for trace in traces]
        found = [_outermost(events) for events in self._events]
        met = min([len(waits) for waits in found], default=0)
        if len({len(waits) for waits in found}) > 1:
            self.note = f"Ranks met {', '.join(str(len(w)) for w in found)} times: only the first {met} are compared."
        for k in range(met):
            names = {waits[k]["name"] for waits in found}
            if len(names) > 1:
                self.note = f"Ranks were in different calls at meeting {k + 1} ({', '.join(sorted(names))})."
                met = k
                break
        self.waits: list[Wait] = []
        self._clocks = self._align([waits[:met] for waits in found])
        self.seconds = max([self._at(r, e["ts"] + e["dur"]) for r, events in enumerate(self._events) for e in events],
                           default=0.0)  # fmt: skip

    def _align(self, found: list[list[dict[str, Any]]]) -> list[tuple[list[float], list[float]]]:
        """For each rank points of its own clock (in microseconds) and of the common one (in seconds)."""
        starts = [min([e["ts"] for e in events], default=0.0) for events in self._events]
        clocks: list[tuple[list[float], list[float]]] = [([start], [0.0]) for start in starts]
        for meeting in zip(*found, strict=True):
            arrivals = [common[-1] + 1e-6 * (event["ts"] - own[-1])
                        for (own, common), event in zip(clocks, meeting, strict=True)]  # fmt: skip
            end = max(arrivals) + 1e-6 * min([event["dur"] for event in meeting])
            self.waits.append(Wait(str(meeting[0]["name"]), tuple(arrivals), end))
            for (own, common), event, arrival in zip(clocks, meeting, arrivals, strict=True):
                own += [event["ts"], event["ts"] + event["dur"]]
                common += [arrival, end]
        return clocks

    def _at(self, rank: int, own_time: float) -> float:
        """The common time of a moment in a rank's trace."""
        own, common = self._clocks[rank]
        if own_time >= own[-1]:
            return common[-1] + 1e-6 * (own_time - own[-1])
        return float(np.interp(own_time, own, common))

    # -- numbers

    def waited(self, rank: int) -> float:
        """Seconds that a rank waited for others to come."""
        return sum([wait.late(rank) for wait in self.waits])

    def waited_for(self, rank: int, other: int) -> float:
        """Seconds that one rank waited for another, which came last."""
        return sum([wait.late(rank) for wait in self.waits if wait.last == other])

    @property
    def sending(self) -> float:
        """Seconds in which all ranks had come and data moved."""
        return sum([wait.sending for wait in self.waits])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for place, rank in enumerate(self.ranks):
            waited = self.waited(place)
            busy = max(self.seconds - waited - self.sending, 0.0)
            slowest = max(range(len(self.ranks)), key=lambda other: self.waited_for(place, other), default=0)
            most = self.waited_for(place, slowest)
            yield (f"rank {rank}", time_text(busy), time_text(self.sending), time_text(waited),
                   share_text(waited / self.seconds if self.seconds else 0.0),
                   f"rank {self.ranks[slowest]}: {time_text(most)}" if most else "")  # fmt: skip

    # -- words and pictures

    def headline(self) -> str:
        """The whole in a sentence."""
        lost = sum([self.waited(rank) for rank in range(len(self.ranks))])
        whole = self.seconds * len(self.ranks)
        return (f"{len(self.ranks)} ranks, {time_text(self.seconds)}, {len(self.waits)} meetings: "
                f"{share_text(lost / whole if whole else 0.0)} of their time they waited for each other")  # fmt: skip

    def __str__(self) -> str:
        names = ("", "busy", "sending", "waiting", "", "most of it for")
        lines = [self.headline(), *([self.note] if self.note else []), ""]
        for cells in (names, *self._rows()):
            lines.append(f"{cells[0]:<10}{cells[1]:>10}{cells[2]:>11}{cells[3]:>11}{cells[4]:>8}  {cells[5]}".rstrip())
        return "\n".join(lines)

    def html(self) -> Markup:
        """The rows of all ranks as a picture, and the table."""
        key = join([tag("span", tag("span", class_="key", style=f"background:{colour}"), name) for colour, name in (
            ("light-dark(#4c78a8, #6f9bd1)", "busy"), ("light-dark(#e45756, #ff8a80)", "waiting for the last rank"),
            ("light-dark(#b7b7b7, #777777)", "sending"))])  # fmt: skip
        rows = [row(*cells) for cells in self._rows()]
        return tag("div", tag("style", Markup(part("wayfare.see.profile", "profile.css") + _STYLE)),
                   tag("h1", "Ranks side by side"), muted(self.headline()), muted(self.note) if self.note else None,
                   tag("p", key), self._picture(),
                   sheet(("", "busy", "sending", "waiting", "share", "most of it for"), rows),
                   class_="profile")  # fmt: skip

    def _picture(self) -> Markup:
        scale = _WIDTH / (self.seconds or 1.0)
        drawn: list[Markup] = []
        for place, rank in enumerate(self.ranks):
            y = 20 + place * _ROW
            drawn.append(tag("text", f"rank {rank}", x=0, y=y + 16))
            ends = [0.0, *[wait.end for wait in self.waits]]
            starts = [*[wait.arrivals[place] for wait in self.waits], self.seconds]
            spans = [(begin, end, "busy", f"busy {time_text(end - begin)}")
                     for begin, end in zip(ends, starts, strict=True)]  # fmt: skip
            for wait in self.waits:
                here, all_here = wait.arrivals[place], max(wait.arrivals)
                whom = f"rank {self.ranks[wait.last]}"
                spans.append((here, all_here, "wait", f"{wait.call}: {time_text(all_here - here)} for {whom}"))
                spans.append((all_here, wait.end, "sent", f"{wait.call}: {time_text(wait.sending)}"))
            drawn += [
                tag("rect", tag("title", told), x=f"{70 + begin * scale:.2f}", y=y, height=_ROW - 10, class_=kind,
                    width=f"{(end - begin) * scale:.2f}")
                for begin, end, kind, told in sorted(spans) if (end - begin) * scale >= 0.1
            ]  # fmt: skip
        height = 30 + len(self.ranks) * _ROW
        drawn.append(tag("text", time_text(self.seconds), x=_WIDTH + 70, y=12, text_anchor="end"))
        return tag("svg", *drawn, class_="ranks", viewBox=f"0 0 {_WIDTH + 80} {height}", role="img",
                   aria_label=self.headline())  # fmt: skip

    def _repr_html_(self) -> str:
        return frame(standalone("Ranks", self.html()), "Ranks")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs nothing else: the ranks one under the other, and who waited for whom."""
        replace_text(os.fspath(path), [standalone("Ranks", self.html())])

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write one trace of all ranks for https://ui.perfetto.dev or chrome://tracing: one process for each rank."""
        replace_text(os.fspath(path), self._text())

    def _text(self) -> Iterator[str]:
        yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
        comma = ""
        for place, rank in enumerate(self.ranks):
            about: list[dict[str, Any]] = [
                {"name": "process_name", "ph": "M", "pid": rank + 1, "tid": 1, "args": {"name": f"rank {rank}"}},
                {"name": "process_sort_index", "ph": "M", "pid": rank + 1, "tid": 1, "args": {"sort_index": rank}},
            ]  # fmt: skip
            for event in self._events[place]:
                start, end = (self._at(place, t) for t in (event["ts"], event["ts"] + event["dur"]))
                about.append({**event, "pid": rank + 1, "tid": 1, "ts": round(1e6 * start, 3),
                              "dur": round(1e6 * end, 3) - round(1e6 * start, 3)})  # fmt: skip
            for each in about:
                yield comma + json.dumps(each)
                comma = ",\n"
        yield "\n]}\n"


def _outermost(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The waits of a rank in their order, without those inside others."""
    waits = sorted([e for e in events if e.get("cat") == "waiting"], key=lambda e: (e["ts"], -e["dur"]))
    return waits[:1] + [b for a, b in pairwise(waits) if b["ts"] >= a["ts"] + a["dur"]]


def merge(traces: Sequence[str | os.PathLike[str]]) -> RankTraces:
    """Put the traces of several ranks on one clock: files that `p.trace(path)` wrote, one on each rank.

    The ranks are those that the files name, or else the order of the files.
    """
    if isinstance(traces, (str, os.PathLike)) or not isinstance(traces, Sequence) or not traces:
        raise ArgumentTypeError("merge: takes a list of files, one for each rank",
                                fix='Write wf.profile.merge(["rank0.json", "rank1.json"]).')  # fmt: skip
    found = [_read(path) for path in traces]
    ranks = [trace.get("otherData", {}).get("rank") for trace in found]
    if not all([isinstance(rank, int) for rank in ranks]) or len(set(ranks)) < len(ranks):
        ranks = list(range(len(found)))
    order = sorted(range(len(found)), key=lambda i: ranks[i])
    return RankTraces([found[i] for i in order], [ranks[i] for i in order])


def _read(path: Any) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
        for event in events:
            float(event["ts"]), float(event["dur"]), str(event["name"])
    except FileNotFoundError:
        raise MissingFileError(f"merge: there is no file {os.fspath(path)!r}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"merge: {os.fspath(path)} is not a trace that p.trace(path) wrote ({error})",
                            fix="Give the files of p.trace, one for each rank.") from None  # fmt: skip
    return dict(trace)
