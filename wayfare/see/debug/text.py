"""A run as text of 80 columns: the steps under the lines that took them, first forward, then backward."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from wayfare.core.format import bytes_text, counted, cut, plain
from wayfare.see.debug.seen import Statistics, Step, Value, line_text, steps_of
from wayfare.see.run_document import INPUT, LEAF

_WIDTH = 80
# If there are more than twice this many steps, the first and the last are shown; of the leaves, the first.
_STEPS = 80
# Up to this many numbers are shown as they are.
_FEW = 3


def text_of(document: dict[str, Any]) -> str:
    """The text of a run."""
    kinds = [event[0] for event in document["events"]]
    values, steps = counted(len(document["nodes"]["op"]), "value"), counted(kinds.count("f"), "step")
    head = f"{document['title']} · {values}, {steps} forward, {kinds.count('b'):,} back"
    if document["memory"]:
        head += f", most alive {bytes_text(max(document['memory']))}"
    lines = [head, *_leaves(document)]
    part = ""
    for chosen in [slice(None)] if len(kinds) <= 2 * _STEPS else [slice(_STEPS), slice(-_STEPS, None)]:
        if chosen.start:
            lines.append(f"  … {len(kinds) - 2 * _STEPS} steps left out …")
        for direction, line in _lines(document, chosen):
            if direction != part:
                part = direction
                lines.append(direction)
            lines.append(line)
    ended = document.get("ended")
    if ended is not None:
        where = line_text(document, ended["site"])
        lines += textwrap.wrap(f"ended by an error{' on ' + where if where else ''}: {ended['error']}", _WIDTH)
    if document.get("left_out"):
        lines.append(f"{document['left_out']} more values were made than may be written down: see limit=")
    return "\n".join(cut(plain(line), _WIDTH) for line in lines)


def _lines(document: dict[str, Any], chosen: slice) -> Iterator[tuple[str, str]]:
    """Steps under their lines, each with its direction."""
    shown = ("", "")
    # What a leaf holds is known at the end: where more is to come, the numbers would be those of later.
    last = {event[1]: at for at, event in enumerate(document["events"]) if event[0] == "a"}
    numbers = range(len(document["events"]))[chosen]
    for at, event, step in zip(numbers, document["events"][chosen], steps_of(document, chosen), strict=True):
        direction = "backward" if step.kind in ("backward", "gradient") else "forward"
        line = f"  {step.line or '(no line)'}  {step.code}".rstrip()
        if (direction, line) != shown and step.kind != "gradient":
            shown = (direction, line)
            yield shown
        yield direction, "    " + _step(step, event, step.kind == "gradient" and last[event[1]] != at)


def _leaves(document: dict[str, Any]) -> Iterator[str]:
    nodes = document["nodes"]
    pairs = enumerate(zip(nodes["kind"], nodes["name"], strict=True))
    leaves = [Value(document, at) for at, (kind, name) in pairs if kind == LEAF or (kind == INPUT and name >= 0)]
    if leaves:
        yield "leaves"
    for leaf in leaves[:_STEPS]:
        yield "    " + _columns(leaf.name, leaf.spec, _numbers(leaf.stats, leaf.elements))
    if len(leaves) > _STEPS:
        yield f"  … {len(leaves) - _STEPS} leaves left out …"


def _step(step: Step, event: Sequence[Any], more_to_come: bool) -> str:
    value = step.value
    if step.kind == "group":
        return f"{step.outcome} of {step.how} as one"
    if step.kind == "decision":
        who = "Python" if step.example is None else f"example {step.example}"
        return f"◇ {who} saw {step.outcome} by {step.how}" + ("" if value is None else f" of {value.name}")
    assert value is not None
    several = f"–{value.number + event[2] - 1}" if len(event) > 2 and step.kind == "forward" else ""
    if step.kind == "gradient":
        numbers = "and more to come" if more_to_come else _numbers(value.grad, value.grad_elements)
        return _columns(f"→ {value.name}.grad", value.spec, numbers)
    if step.kind == "backward":
        return _columns(f"∂{value.name} of {value.op}", value.spec, _numbers(value.grad, value.grad_elements))
    given = ", ".join([*(_given(i) for i in value.inputs), *([value.attrs] if value.attrs else [])])
    made = f"{value.name}{several} {value.op}({given})"
    return _columns(made, value.spec, _numbers(value.stats, value.elements))


def _given(value: Value) -> str:
    """An input by its name; a number that stands in the code, as such."""
    elements = value.elements
    if value.is_leaf and value.name[0] == "%" and isinstance(elements, (int, float)) and value.op != "leaf":
        return f"{elements:g}"
    return value.name


def _columns(what: str, spec: str, numbers: str) -> str:
    return f"{cut(what, 43):<35} {spec:<10} {numbers}".rstrip()


def _numbers(stats: Statistics | None, elements: Any) -> str:
    """A single number; for more, their range."""
    if stats is None:
        return ""
    if elements is not None and not isinstance(elements, list):
        return f"{elements:.4g}" if isinstance(elements, float) else str(elements)
    if isinstance(elements, list) and 0 < len(elements) <= _FEW and all(isinstance(e, (int, float)) for e in elements):
        return f"[{', '.join(f'{e:.4g}' for e in elements)}]"
    bad = [f"{count} {what}" for count, what in ((stats.nans, "NaN"), (stats.infinite, "inf")) if count]
    if stats.min is None or stats.max is None or stats.mean is None:
        return ", ".join(bad)
    return ", ".join([*bad, f"{stats.min:.3g} … {stats.max:.3g}, mean {stats.mean:.2g}"])
