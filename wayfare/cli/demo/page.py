"""How a demo prints: headings, sentences and tables that fit 80 columns, coloured on a terminal only."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.box import ASCII2, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import wayfare as wf

WIDTH = 80


class Page:
    """A stream to print a demo on. On anything but a terminal the text has no colours and no drawing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = Console(file=self._stream, width=WIDTH, markup=False, highlight=False)
        self._box = SIMPLE_HEAD if self._console.is_terminal else ASCII2

    def title(self, text: str) -> None:
        """Print the name of the demo, underlined."""
        self._console.print(text, style="bold")
        self._console.print("=" * len(text), style="bold")

    def heading(self, text: str) -> None:
        """Start a section."""
        self._console.print()
        self._console.print(text, style="bold cyan")

    def say(self, sentence: str) -> None:
        """Explain in a sentence, wrapped and set off from what the program computed."""
        self._console.print("\n".join(textwrap.wrap(sentence, WIDTH)), style="italic")

    def show(self, **values: str) -> None:
        """List names and what they are, one to a line and aligned; an underscore reads as a space."""
        self.entries({name.replace("_", " "): value for name, value in values.items()})

    def entries(self, values: Mapping[str, str]) -> None:
        """The same for names that are not Python identifiers."""
        width = max(map(len, values))
        for name, value in values.items():
            self._console.print(
                Text.assemble("  ", (name.ljust(width), "green"), "  ", value), no_wrap=True, overflow="ellipsis"
            )

    def chances(self, chances: Mapping[str, float], truth: str) -> None:
        """Print probabilities by name, the likeliest first, with a mark at the truth."""
        names = max(map(len, chances))
        for name, chance in sorted(chances.items(), key=lambda item: -item[1]):
            mark = "  <- the truth" if name == truth else ""
            self.listing(f"  {name:<{names}} {chance:7.1%}  {'#' * round(30 * chance)}{mark}".rstrip())

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows under their columns, words to the left and numbers to the right."""
        table = Table(box=self._box, header_style="bold")
        for index, column in enumerate(columns):
            wordy = any(row[index].strip()[:1].isalpha() for row in rows)
            table.add_column(column, justify="left" if wordy else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def bars(self, counts: Mapping[str, int], width: int = 44) -> None:
        """Print counts by name as bars, the largest `width` characters wide."""
        names, largest = max(map(len, counts)), max(counts.values())
        for name, count in counts.items():
            bar = "#" * max(round(width * count / largest), count > 0)
            self._console.print(Text.assemble("  ", (name.rjust(names), "green"), f"  {bar} {count}"))

    def listing(self, text: str) -> None:
        """Print lines as they stand; one that runs over the page is cut, with a mark, and not wrapped."""
        self._console.print(text, no_wrap=True, overflow="ellipsis")

    def place(self, path: str) -> None:
        """Print a path on a line of its own, whole however long it is."""
        self._console.print(f"  {path}", soft_wrap=True)

    @contextlib.contextmanager
    def taking_prints(self) -> Iterator[None]:
        """What the block prints goes to this page."""
        with contextlib.redirect_stdout(self._stream):
            yield


def numbers(t: wf.Tensor, count: int = 5) -> str:
    """The first values of a tensor, to read."""
    flat = t.detach().flatten()
    shown = " ".join(f"{value:+.3f}" for value in flat[:count].tolist())
    return shown if flat.numel() <= count else f"{shown} …"


def described(t: wf.Tensor | None, count: int = 5) -> str:
    """The shape of a tensor and its first values."""
    return "no tensor" if t is None else f"{list(t.shape)!s:<10} {numbers(t, count)}"


def described_batching(stats: Any) -> str:
    """How many calls were recorded and how they ran."""
    if stats is None:
        return "nothing was batched"
    return f"{stats.nodes:,} calls ran as {stats.groups:,} groups of {stats.mean_group:.1f} on average"
