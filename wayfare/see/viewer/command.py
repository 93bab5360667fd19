"""`wayfare view`: a saved run in the browser. A page opens as it is; a document (.json) becomes a page first."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from wayfare.core.errors import ArgumentError, FileAccessError, FileFormatError, WayfareError
from wayfare.core.format import plain
from wayfare.io.documents import read_beginning, read_document
from wayfare.io.replace import replace_text
from wayfare.see.run_check import problem_of
from wayfare.see.viewer.page import page

# A page of this viewer says so near its beginning.
_MARK = b'<meta name="generator" content="wayfare view">'
_BEGINNING = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", help="run.html or run.json, as written by run.save(...)")
    parser.add_argument("--no-browser", action="store_true", help="print where the page is and open nothing")


def run(options: argparse.Namespace) -> int:
    """Open the page of a saved run, print where it is, and return the exit status."""
    try:
        place = page_of(Path(options.file))
    except WayfareError as error:
        print(f"wayfare view: {error.sentence}. {error.fix}".strip(), file=sys.stderr)
        return 1
    # Without a desktop no browser opens; then the user needs the path.
    opened = not options.no_browser and webbrowser.open(place.as_uri())
    print(f"{'Opened' if opened else 'The page is'} {plain(str(place))}")
    return 0


def page_of(path: Path) -> Path:
    """The page to open for a file: itself, or one made from the document in it."""
    kind = path.suffix.lower()
    if kind in (".html", ".htm"):
        if _MARK not in read_beginning(os.fspath(path), _BEGINNING, "view"):
            fix = f"Make one with run.save({path.name!r})."
            raise FileFormatError(f"{str(path)!r} is not the page of a run", fix=fix)
        return path.resolve()
    if kind == ".json":
        return _write(path, page(_document(path)))
    raise ArgumentError(f"{str(path)!r} is neither .html nor .json", fix="Give a file that run.save(...) wrote.")


def _document(path: Path) -> dict[str, Any]:
    fix = f"Give a file that run.save({path.name!r}) wrote."
    try:
        document = read_document(os.fspath(path), "view")
    except FileFormatError as error:
        raise FileFormatError(error.sentence, fix=fix) from None
    problem = problem_of(document)
    if problem:
        raise FileFormatError(f"{str(path)!r} {problem}", fix=fix)
    return document  # type: ignore[no-any-return]


def _may_write(place: Path) -> bool:
    """Is nothing there, or a page of this viewer? Anything else, above all a link, is not ours to replace."""
    try:
        return stat.S_ISREG(place.lstat().st_mode) and _MARK in read_beginning(os.fspath(place), _BEGINNING, "view")
    except FileNotFoundError:
        return True
    except WayfareError:
        return False


def _write(path: Path, text: str) -> Path:
    """Next to the document; where something else is there, or the folder is not for writing, in a temporary one."""
    beside = path.resolve().with_suffix(".html")
    if _may_write(beside):
        try:
            replace_text(os.fspath(beside), [text])
            return beside
        except FileAccessError:
            pass
    elsewhere = Path(tempfile.mkdtemp(prefix="wayfare-view-")) / beside.name
    replace_text(os.fspath(elsewhere), [text])
    return elsewhere
