"""`wayfare view`: a saved run in the browser. A page opens as it is; a document (.json) becomes a page first."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from wayfare.errors import ArgumentError, FileAccessError, FileFormatError, MissingFileError, WayfareError
from wayfare.io.replace import replace_text
from wayfare.run_document import FORMAT
from wayfare.view.page import page

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
    # In a terminal without a desktop no browser opens, and the path is what there is to use.
    opened = not options.no_browser and webbrowser.open(place.as_uri())
    print(f"{'Opened' if opened else 'The page is'} {place}")
    return 0


def page_of(path: Path) -> Path:
    """The page to open for a file: itself, or one made from the document in it."""
    kind = path.suffix.lower()
    if kind in (".html", ".htm"):
        if _MARK not in _read(path, _BEGINNING):
            fix = f"Make one with run.save({path.name!r})."
            raise FileFormatError(f"{str(path)!r} is no page of a run", fix=fix)
        return path.resolve()
    if kind == ".json":
        return _write(path, page(_document(path)))
    raise ArgumentError(f"{str(path)!r} is neither .html nor .json", fix="Give a file that run.save(...) wrote.")


def _read(path: Path, count: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except FileNotFoundError:
        raise MissingFileError(f"there is no file {str(path)!r}") from None
    except OSError as error:
        raise FileAccessError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def _document(path: Path) -> dict[str, Any]:
    fix = f"Give a file that run.save({path.name!r}) wrote."
    try:
        document = json.loads(_read(path))
    except (ValueError, RecursionError):
        raise FileFormatError(f"{str(path)!r} is not JSON, or only a part of it", fix=fix) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FileFormatError(f"{str(path)!r} holds no run", fix=fix)
    return document


def _write(path: Path, text: str) -> Path:
    """Next to the document; where something else is there, or the folder is not for writing, in a temporary one."""
    beside = path.resolve().with_suffix(".html")
    if not beside.exists() or _MARK in _read(beside, _BEGINNING):
        try:
            replace_text(os.fspath(beside), [text])
            return beside
        except FileAccessError:
            pass
    elsewhere = Path(tempfile.mkdtemp(prefix="wayfare-view-")) / beside.name
    replace_text(os.fspath(elsewhere), [text])
    return elsewhere
