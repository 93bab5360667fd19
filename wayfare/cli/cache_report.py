"""`wayfare cache`: which kernels are kept on disk, where, and how to be rid of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from wayfare.cli.demo.page import Page
from wayfare.codegen.runtime.cache import Entry, Store, default_store
from wayfare.core.format import bytes_text, counted, cut

# A table longer than this says nothing a summary does not.
ROWS = 40
_OFF = "The kernel cache is off."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command: at most one of them."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--clear", action="store_true", help="delete all kernels")
    choice.add_argument("--json", action="store_true", help="print JSON")
    choice.add_argument("--folder", action="store_true", help="print the folder alone")


def run(options: argparse.Namespace) -> int:
    """Do what the options say with the store of the settings; returns the exit status."""
    store = default_store()
    if store.folder is not None and store.folder.exists() and not store.folder.is_dir():
        print(f"wayfare cache: {str(store.folder)!r} is no folder. Set WAYFARE_CACHE to one, or to off.",
              file=sys.stderr)  # fmt: skip
        return 1
    if options.json:
        print(json.dumps(as_dict(store), indent=2))
    elif options.folder:
        print("off" if store.folder is None else store.folder)
    elif store.folder is None:
        print(_OFF)
    elif options.clear:
        count, size = store.clear()
        print(f"Removed {counted(count, 'kernel')}, {bytes_text(size)}, from {store.folder}")
    else:
        show(store, Page())
    return 0


def as_dict(store: Store) -> dict[str, Any]:
    """All there is to say, for programs."""
    return {
        "folder": None if store.folder is None else str(store.folder),
        "limit": store.limit_bytes,
        "size": store.size(),
        "kernels": [
            {"key": e.key, "size": e.size, "made": e.made, "used": e.used, "about": e.about} for e in store.entries()
        ],
    }


def show(store: Store, page: Page) -> None:
    """A table for people, the most recently used kernels first."""
    entries = store.entries()
    if entries:
        now = time.time()
        page.table(("kernel", "layout", "size", "made", "used"), [_row(entry, now) for entry in entries[:ROWS]])
    if len(entries) > ROWS:
        page.say(f"… and {counted(len(entries) - ROWS, 'kernel')} more; --json lists all.")
    page.show(
        total=f"{counted(len(entries), 'kernel')}, {bytes_text(store.size())} of at most "
        f"{bytes_text(store.limit_bytes)}",
        folder=str(store.folder),
    )


def _row(entry: Entry, now: float) -> tuple[str, ...]:
    # Names can be whole expressions; the table cuts them, and a line break in one would break the table.
    name = " ".join(entry.about.get("name", "unnamed").split()) or "unnamed"
    layout = entry.about.get("layout", "")
    return cut(name, 26), cut(layout, 12), bytes_text(entry.size), _age(now - entry.made), _age(now - entry.used)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
