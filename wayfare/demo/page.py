"""How a demo prints: headings, sentences and tables that fit 80 columns, coloured on a terminal only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.box import ASCII2, SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 80


class Page:
    """A stream to print a demo on. On anything but a terminal the text has no colours and no drawing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream, width=WIDTH, markup=False, highlight=False)
        self._box = SIMPLE_HEAD if self._console.is_terminal else ASCII2

    def title(self, text: str) -> None:
        """Print the name of the demo."""
        self._console.print(text, style="bold")

    def heading(self, text: str) -> None:
        """Start a section."""
        self._console.print()
        self._console.print(text, style="bold cyan")

    def say(self, sentence: str) -> None:
        """Explain in a sentence, wrapped and set off from what the program computed."""
        self._console.print(sentence, style="italic")

    def show(self, **values: str) -> None:
        """List names and what they are, one to a line and aligned; an underscore reads as a space."""
        width = max(map(len, values))
        for name, value in values.items():
            label = name.replace("_", " ").ljust(width)
            self._console.print(Text.assemble("  ", (label, "green"), "  ", value))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows under their columns, words to the left and numbers to the right."""
        table = Table(box=self._box, header_style="bold")
        for index, column in enumerate(columns):
            wordy = any(row[index].strip()[:1].isalpha() for row in rows)
            table.add_column(column, justify="left" if wordy else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._console.print(table)

    def listing(self, text: str) -> None:
        """Print lines as they stand; one that runs over the page is cut, with a mark, and not wrapped."""
        self._console.print(text, no_wrap=True, overflow="ellipsis")
