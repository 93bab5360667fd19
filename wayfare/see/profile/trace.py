"""A profile as a trace for Perfetto and chrome://tracing: JSON in the trace event format, times in microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from wayfare.core.version import __version__
from wayfare.distributed.process_group import get_rank, get_world_size, is_initialized
from wayfare.see.profile.costs import Place
from wayfare.see.profile.stopwatch import Event, ModuleCalls, Stopwatch

_PID, _TID, _GPU = 1, 1, 2


def text(watch: Stopwatch) -> Iterator[str]:
    """The file, piece by piece."""
    several = len({calls.root for calls in watch.modules.values()}) > 1
    about: dict[str, Any] = {"program": f"wayfare {__version__}", "events left out": watch.left_out}
    name = "wayfare"
    if is_initialized():  # `merge` puts the traces of all ranks side by side
        about |= {"rank": get_rank(), "ranks": get_world_size()}
        name = f"rank {get_rank()}"
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'
    yield json.dumps({"name": "process_name", "ph": "M", "pid": _PID, "tid": _TID, "args": {"name": name}})
    yield ",\n" + json.dumps({"name": "thread_name", "ph": "M", "pid": _PID, "tid": _TID, "args": {"name": "profile"}})
    known: dict[Place, dict[str, Any]] = {}
    # What begins first and lasts longest comes first: it encloses the rest.
    for event in sorted(watch.events, key=lambda e: (e[1], -e[2])):
        yield ",\n" + json.dumps(_complete(event, several, known))
    yield from _of_device(watch, known)
    last = None
    for _, start, seconds, _, memory in watch.events if watch.memory is not None else ():
        if memory != last:
            last = memory
            yield ",\n" + json.dumps({"name": "memory", "ph": "C", "pid": _PID, "tid": _TID,
                                      "ts": _micro(start + seconds), "args": {"bytes": memory}})  # fmt: skip
    yield "\n]}\n"


def _of_device(watch: Stopwatch, known: dict[Place, dict[str, Any]]) -> Iterator[str]:
    """A row of its own for what a GPU did, and a curve for its memory."""
    if not watch.device.work:
        return
    about = {"ph": "M", "pid": _PID, "tid": _GPU, "name": "thread_name"}
    yield ",\n" + json.dumps(about | {"args": {"name": "GPU"}})
    for place, start, seconds, backward in sorted(watch.device.work, key=lambda work: (work[1], -work[2])):
        if place not in known:
            known[place] = _about(place)
        name = f"{place.name} (gradient)" if backward and place.kind == "op" else place.name
        begin = _micro(start)
        yield ",\n" + json.dumps({"ph": "X", "pid": _PID, "tid": _GPU, "ts": begin, "name": name, "cat": "gpu",
                                  "dur": round(_micro(start + seconds) - begin, 3), "args": known[place]})  # fmt: skip
    for at, size in watch.device_memory.curve.points() if watch.device_memory is not None else ():
        yield ",\n" + json.dumps({"name": "GPU memory", "ph": "C", "pid": _PID, "tid": _GPU, "ts": _micro(at),
                                  "args": {"bytes": size}})  # fmt: skip


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _complete(event: Event, several: bool, known: dict[Place, dict[str, Any]]) -> dict[str, Any]:
    what, begin, seconds, backward, memory = event
    start = _micro(begin)
    # The end is rounded as well, so that what lies inside stays inside.
    made: dict[str, Any] = {"ph": "X", "pid": _PID, "tid": _TID, "ts": start,
                            "dur": round(_micro(begin + seconds) - start, 3)}  # fmt: skip
    if isinstance(what, ModuleCalls):
        return made | {"name": what.shown(several), "cat": "module", "args": {"class": what.kind}}
    if what not in known:
        known[what] = _about(what)
    name = f"{what.name} (gradient)" if backward and what.kind == "op" else what.name
    category = "backward" if backward and what.kind != "waiting" else _category(what)
    return made | {"name": name, "cat": category, "args": {"memory": memory} | known[what]}


def _category(place: Place) -> str:
    return "forward" if place.kind == "op" else place.kind


def _about(place: Place) -> dict[str, Any]:
    made: dict[str, Any] = {}
    site = place.site
    if site is not None:
        made["line"] = str(site)
        made["code"] = site.text
    if place.module is not None:
        made["module"] = place.module.shown(True)
    return made
