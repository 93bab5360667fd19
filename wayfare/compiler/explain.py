"""`compiled.explain()`: signatures, decisions, plans and guards of a compiled function, as text and as data."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.compiler.replay.entry import Entry
from wayfare.compiler.replay.trace_tree import Block
from wayfare.compiler.structure import OBJECT, TENSOR, VALUE
from wayfare.core.format import time_text
from wayfare.core.spec import OF_NUMPY
from wayfare.ir.plan.plan import Plan

if TYPE_CHECKING:
    from wayfare.compiler.function import Compiled

_WIDTH = 80
# The most signatures, and outcomes of one decision, that are listed; the others are counted.
_SIGNATURES, _OUTCOMES = 8, 8
_GUARDS = 24


class Explanation:
    """The state of a compiled function: `str()` gives text, `data` the same as dictionaries."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join(_text(self.data))


def explain(compiled: Compiled, verbose: bool = False) -> Explanation:
    """Describe what a compiled function keeps; with `verbose`, every kernel of its plans too."""
    plain, budget = compiled._plain(), compiled._budget
    ran = sum(plain.values())
    calls = compiled._calls + compiled._fallback.bypassed
    signatures = [
        {"arguments": arguments_of(key), "variants": _variants(compiled, entries, verbose)}
        for key, entries in list(compiled._cache.entries.items())
    ]
    return Explanation({
        "name": getattr(compiled, "__qualname__", compiled._name).rpartition("<locals>.")[2],
        "calls": calls,
        "recorded": compiled._recorded,
        "replayed": max(0, calls - compiled._recorded - compiled._timed_calls - ran),
        "checked": compiled._checked,
        "timed": compiled._timed_calls,
        "plain": ran,
        "seconds": budget.total,
        "spent": budget.spent,
        "signatures": signatures,
        "python": [{"reason": compiled._fallback.with_line(reason), "calls": count} for reason, count in plain.items()],
        "retraces": list(compiled._retraces),
        "verbose": verbose,
    })  # fmt: skip


# -- data -------------------------------------------------------------------------------------------------------------


def arguments_of(key: Any) -> str:
    """The arguments in a signature as one would write them: `f32[32, 16], k=2`."""
    if key[0] is None:
        return "…"  # arguments that cannot be compared
    shape, _, _, parts, _ = key
    specs = iter([_spec(*part[:4]) for part in parts])
    if isinstance(shape, int):
        return ", ".join(specs)
    positional, named = shape
    shown = [_shown(part, specs) for part in positional[1:]]
    shown += [f"{name}={_shown(part, specs)}" for _, name, part in (named[1:] if named is not None else ())]
    return ", ".join(shown)


def _spec(shape: tuple[int, ...], _strides: Any, number: int, needs: bool) -> str:
    dtype = next(found.short for numpy, found in OF_NUMPY.items() if numpy.num == number)
    return f"{dtype}{list(shape)}" + (" with gradient" if needs else "")


def _shown(part: Any, specs: Iterator[str]) -> str:
    if part is TENSOR:
        return next(specs)
    kind = part[0]
    if len(part) > 2 and part[1] is OBJECT:
        return f"<{kind.__name__}>"
    if len(part) > 2 and part[1] is VALUE:
        return _cut(repr(part[2]), 40)
    if kind is dict:
        return "{" + ", ".join(f"{name!r}: {_shown(inside, specs)}" for _, name, inside in part[1:]) + "}"
    inside = ", ".join([_shown(p, specs) for p in part[1:]])
    if kind is list:
        return f"[{inside}]"
    return f"({inside})" if kind is tuple else f"{kind.__name__}({inside})"


def _variants(compiled: Compiled, entries: list[Entry], verbose: bool) -> list[dict[str, Any]]:
    """The entries of a signature, newest first; those that run as plain Python for the same reason are one."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        reason = compiled._fallback.with_line(entry.eager_reason) if entry.eager_reason else ""
        if not reason or all(reason != other["python"] for other in found):
            found.append(_variant(compiled, entry, reason, verbose))
    return found


def _variant(compiled: Compiled, entry: Entry, reason: str, verbose: bool) -> dict[str, Any]:
    return {
        "hits": entry.hits,
        "recordings": entry.recordings,
        "guards": entry.guards.describe(),
        "python": reason,
        "seconds": entry.timings.typical(),
        "tree": None if entry.tree.root is None else _block(entry.tree.root, verbose),
        "gradients": [_plan(s.gradient.plan, verbose) for s in entry.tree.walk()
                      if s.gradient is not None and s.gradient.plan is not None],
    }  # fmt: skip


def _block(block: Block, verbose: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "visits": block.visits,
        "plan": None if block.plan is None else _plan(block.plan, verbose),
        "ends": block.recording is not None,
        "decision": block.how,
        "line": os.path.basename(block.line),
    }
    found["outcomes"] = [
        {"outcome": _outcome(outcome), "then": _block(child, verbose)} for outcome, child in block.children.items()
    ]
    return found


def _plan(plan: Plan, verbose: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kernels": plan.kernels, "matmuls": plan.matmuls, "python_steps": plan.python_steps,
        "in_python": list(plan.in_python),
        "native_calls": plan.lists, "arena_bytes": plan.arena_bytes, "peak_bytes": plan.peak_bytes,
    }  # fmt: skip
    if verbose:
        found["actions"] = [line.strip() for line in plan.describe().splitlines()[1:]]
    return found


def _outcome(outcome: Any) -> str:
    """The value Python read: True, a number, or the shape of an array and the beginning of its digest."""
    if isinstance(outcome, bool):
        return str(outcome)
    if len(outcome) == 2:
        return str(outcome[1])
    shape, char, digest = outcome
    return f"{OF_NUMPY[np.dtype(char)].short}{list(shape)} #{digest.hex()[:6]}"


# -- text -------------------------------------------------------------------------------------------------------------


def _text(data: dict[str, Any]) -> Iterator[str]:
    counts = [f"{data['replayed']} replayed", f"{data['recorded']} recorded"]
    counts[0] += f" ({data['checked']} checked)" if data["checked"] else ""
    counts += [f"{data['timed']} timed as plain Python"] if data["timed"] else []
    counts += [f"{data['plain']} run as plain Python"] if data["plain"] else []
    yield from _wrapped(f"{data['name']}: {_count(data['calls'], 'call')}, {', '.join(counts)}", "  ")
    signatures = data["signatures"]
    # The newest last; if there are many, those with the most calls.
    chosen = signatures if len(signatures) <= _SIGNATURES else sorted(signatures, key=_hits)[-_SIGNATURES:]
    for signature in chosen:
        for number, variant in enumerate(signature["variants"]):
            yield ""
            earlier = ", with earlier guards" if number else ""
            yield from _wrapped(f"{data['name']}({signature['arguments']}){earlier}", "  ")
            yield from _variant_text(variant, data["verbose"])
    if len(chosen) < len(signatures):
        yield ""
        yield f"and {len(signatures) - len(chosen)} more signatures, with fewer calls"
    yield from _section("runs as plain Python:", [
        f"{_count(entry['calls'], 'call')}, because {entry['reason']}" for entry in data["python"]
    ])  # fmt: skip
    yield from _section("recorded again, because:", data["retraces"])
    if data["seconds"]:
        yield ""
        yield from _wrapped(f"ran for {time_text(data['seconds'])}; recording, planning and checking took "
                            f"{time_text(data['spent'])}", "  ")  # fmt: skip


def _hits(signature: dict[str, Any]) -> int:
    return sum(variant["hits"] for variant in signature["variants"])


def _variant_text(variant: dict[str, Any], verbose: bool) -> Iterator[str]:
    if variant["python"]:
        yield from _wrapped(f"  plain Python, because {variant['python']}", "    ")
        return
    times = [f"{time_text(seconds)} {what}" for seconds, what in zip(
        variant["seconds"], ("a call", "by Python"), strict=True) if seconds is not None]  # fmt: skip
    yield f"  {variant['hits']} replayed, {variant['recordings']} recorded{'; ' * bool(times)}{', '.join(times)}"
    if variant["tree"] is not None:
        yield from _tree_text(variant["tree"], "  ", "  ")
    for plan in variant["gradients"]:
        yield from _plan_text(plan, "  its gradient: ", "    ")
    guards = variant["guards"] if verbose else _gathered(variant["guards"])
    if guards:
        more = f" and {len(guards) - _GUARDS} more" if len(guards) > _GUARDS and not verbose else ""
        shown = guards if verbose else guards[:_GUARDS]
        yield from _wrapped(f"  depends on {', '.join(shown)}{more}", "    ")


def _gathered(guards: list[str]) -> list[str]:
    """What is guarded; the parts of an object (`model[0].weight`) are counted, not listed."""
    parts: dict[str, int] = {}
    shown: dict[str, str] = {}
    for guard in guards:
        path = guard.partition("`")[2].rstrip("`")
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        if root in shown:
            parts[root] = parts.get(root, 0) + 1
        else:
            shown[root] = guard
    return [guard + (f" ({_count(parts[root], 'part')})" if root in parts else "") for root, guard in shown.items()]


def _tree_text(block: dict[str, Any], first: str, rest: str) -> Iterator[str]:
    """A block, and below it the decision at its end, with a branch for each outcome."""
    visits = "" if block["plan"] is None and not block["visits"] else f"{_count(block['visits'], 'visit')}: "
    branches = block["outcomes"]
    bar = rest + ("│ " if branches else "  ")
    if block["plan"] is None:
        yield f"{first}● {visits}not planned yet (seen once)"
    else:
        yield from _plan_text(block["plan"], f"{first}● {visits}", bar + "  ")
    if not branches:
        return
    yield from _wrapped(f"{rest}◇ {block['decision']} on {block['line']}", rest + "│ ")
    shown = branches if len(branches) <= _OUTCOMES else branches[-_OUTCOMES:]
    for number, branch in enumerate(shown):
        last = number == len(shown) - 1 and len(shown) == len(branches)
        yield f"{rest}{'└' if last else '├'}─ {branch['outcome']}"
        below = rest + ("   " if last else "│  ")
        yield from _tree_text(branch["then"], below, below)
    if len(shown) < len(branches):
        yield f"{rest}└─ and {len(branches) - len(shown)} other outcomes"


def _plan_text(plan: dict[str, Any], first: str, rest: str) -> Iterator[str]:
    counts = [
        _count(plan["kernels"], "kernel"), _count(plan["matmuls"], "matmul"),
        *_python_steps(plan["in_python"]),
        _count(plan["native_calls"], "native call"), f"peak {_bytes(plan['peak_bytes'])}",
        f"arena {_bytes(plan['arena_bytes'])}",
    ]  # fmt: skip
    yield from _wrapped(first + ", ".join(counts), rest)
    for action in plan.get("actions", ()):
        yield _cut(f"{rest}{action}", _WIDTH)


def _python_steps(titles: list[str]) -> list[str]:
    if not titles:
        return []
    names = dict.fromkeys(title.removeprefix("op ").partition("(")[0] for title in titles)
    return [f"{_count(len(titles), 'step')} in Python ({', '.join(names)})"]


def _section(title: str, entries: list[str]) -> Iterator[str]:
    if entries:
        yield ""
        yield title
    for entry in entries:
        yield from _wrapped(f"  - {entry}", "    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _bytes(count: int) -> str:
    """A number of bytes in at most four digits."""
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"
