"""The text layout of reports on model files: titles with their entries, within the width of a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from wayfare.core.format import cut, plain

_WIDTH = 80
_INDENT = 12
# A longer word would not fit next to its title.
_LONGEST_WORD = _WIDTH - _INDENT - 2
_LONGEST_PART = 600
# At most this many inputs, operators, … of a file are printed.
MOST_PRINTED = 40


def listed(title: str, parts: Sequence[str], most: int | None = None) -> Iterator[str]:
    """A title with its parts; with `most`, at most this many parts, each shortened."""
    if not parts:
        return
    texts = [plain(part) for part in parts[:most]]
    if most is not None:
        texts = [_short(text) for text in texts]
        if len(parts) > most:
            texts.append(f"and {len(parts) - most:,} more")
    yield from textwrap.wrap(
        "; ".join(texts), _WIDTH, initial_indent=f"  {title:<{_INDENT - 2}}", subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def times_text(counts: Counter[str]) -> list[str]:
    """Names with their counts: `Gather ×2`, `Gemm`."""
    return [kind if n == 1 else f"{kind} ×{n:,}" for kind, n in counts.items()]


def headline(name: str, parts: Iterable[str]) -> Iterator[str]:
    """The first line: the name, and the most important facts."""
    first = f"{_short(plain(name))}: {', '.join(parts)}"
    yield from textwrap.wrap(first, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _short(text: str) -> str:
    return " ".join(cut(word, _LONGEST_WORD) for word in cut(text, _LONGEST_PART).split(" "))
