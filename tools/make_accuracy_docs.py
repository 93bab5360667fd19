"""Write the tables of docs/accuracy.md from what `python -m benchmarks accuracy --json FILE` found.

    python tools/make_accuracy_docs.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.accuracy import LONG_OFFSETS, OFFSETS, ROUNDINGS, TIMES, WHATS, table, too_far  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- figures: written by tools/make_accuracy_docs.py -->", "<!-- end of the figures -->"


def figures(content: dict[str, Any]) -> str:
    """The tables in Markdown, and where and when they were made."""
    about, found = content["environment"], content["curves"]["found"]
    lines = [f"{about['compared']}; {about['under']}; {about['machine'].split(', load')[0]}; {about['date']}.", ""]
    for title, functions in found.items():
        for what in WHATS:
            heads, rows = table(functions, OFFSETS.get(title, LONG_OFFSETS), what)
            if rows:
                lines += [f"### {title[0].upper()}{title[1:]}, {what}", ""]
                lines += [_row(heads), _row(["---", *["--:"] * (len(heads) - 1)]), *map(_row, rows), ""]
    far = too_far(found)
    told = "; ".join(far) if far else "none"
    lines.append(f"Errors above {ROUNDINGS:g} roundings and {TIMES:g} times PyTorch's: {told}.")
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    content = json.loads(Path(arguments[0]).read_text())
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{figures(content)}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
