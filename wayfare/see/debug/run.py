"""A run that was recorded: its steps and values, its text, and how it is saved and shown."""

from __future__ import annotations

import gc
import html
import json
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wayfare.core.callsite import Site
from wayfare.core.errors import ArgumentError, FileFormatError
from wayfare.core.format import counted, plain
from wayfare.io.documents import read_document
from wayfare.io.replace import replace_text
from wayfare.see.debug.document import document_of, ending
from wayfare.see.debug.recorder import Recorder
from wayfare.see.debug.seen import Step, Summary, Values, steps_of, summary_of
from wayfare.see.debug.text import text_of
from wayfare.see.run_check import problem_of
from wayfare.see.viewer import page

# How high a run is shown in a notebook, in pixels.
_HEIGHT = 640


class Run:
    """What happened in a `with wf.debug.record() as run:` block, in the order of time.

    Iterating gives its steps: ops forward, gradients backward, what Python looked at. `print(run)` is a readable text,
    `run.save("run.html")` a page to explore it. It holds numbers and text, no tensors.
    """

    def __init__(self, title: str, recorder: Recorder | None, document: dict[str, Any] | None = None) -> None:
        self.title = title
        self._recorder = recorder
        self._document = document
        self._created = datetime.now(UTC)
        self._ended: tuple[str, Site | None] | None = None
        self._over = recorder is None

    def _end(self, error: BaseException | None) -> None:
        """The block has ended."""
        assert self._recorder is not None
        self._recorder.let_go()
        self._ended = None if error is None else ending(error)
        self._over = True

    def document(self) -> dict[str, Any]:
        """The run as lists and text, as `save` writes it to a .json file. While the block runs: the part so far."""
        if self._document is not None:
            return self._document
        assert self._recorder is not None
        # Millions of small lists, none of them garbage: a collection would take most of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            made = document_of(self._recorder, self.title, self._created, self._ended)
        finally:
            if collects:
                gc.enable()
        if self._over:
            # The document has everything, in less memory.
            self._document, self._recorder = made, None
        return made

    @property
    def nodes(self) -> Values:
        """All values in the order in which they were met, by number: `run.nodes[3]` is shown as `%3`."""
        return Values(self.document())

    def __iter__(self) -> Iterator[Step]:
        return steps_of(self.document())

    def __len__(self) -> int:
        return len(self.document()["events"])

    def __bool__(self) -> bool:
        return True

    @property
    def error(self) -> str | None:
        """The error by which the block ended, as text; None if it came to its end."""
        ended = self.document().get("ended")
        return None if ended is None else str(ended["error"])

    def stats(self) -> Summary:
        """Counts: steps, values, bytes, the most memory alive, by op, by module, by line."""
        return summary_of(self.document())

    def __str__(self) -> str:
        return text_of(self.document())

    def __repr__(self) -> str:
        return f"<{plain(self.title)}: {counted(len(self), 'step')}, {counted(len(self.nodes), 'value')}>"

    # -- out of here

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a page (.html) that any browser opens, or to a .json file that `wf.debug.load` reads.

        The file is replaced in one step: if there is no room, the old one is as it was, and the run is still here.
        """
        target = os.fspath(path)
        ending_of = os.path.splitext(target)[1].lower()
        if ending_of in (".html", ".htm"):
            text = page(self.document())
        elif ending_of == ".json":
            text = json.dumps(self.document(), allow_nan=False, separators=(",", ":"))
        else:
            raise ArgumentError(f"save: a run is saved as .html or .json, not as {os.path.basename(target)!r}",
                                fix='Call run.save("run.html").')  # fmt: skip
        replace_text(target, [text])

    def show(self) -> None:
        """Open the run in the browser, as a page in the folder for temporary files."""
        folder = tempfile.mkdtemp(prefix="wayfare-run-")
        path = os.path.join(folder, "run.html")
        self.save(path)
        if not webbrowser.open(Path(path).as_uri()):
            print(f"no browser was found; the page is {path}")

    def _repr_html_(self) -> str:
        """The page, inside a notebook."""
        return (
            f'<iframe srcdoc="{html.escape(page(self.document()), quote=True)}" '
            f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884" sandbox="allow-scripts"></iframe>'
        )


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run that was saved as .json."""
    target = os.fspath(path)
    try:
        document = read_document(target, "load")
    except FileFormatError as error:
        fix = 'Give a file that run.save("run.json") wrote; a .html file is for the browser.'
        raise FileFormatError(f"load: {target!r} is not a run: {error.sentence.removeprefix('load: ')}",
                              fix=fix) from None  # fmt: skip
    problem = problem_of(document)
    if problem:
        raise FileFormatError(f"load: {target!r} {problem}")
    return Run(document["title"], None, document)
