"""Compare the speed of the working tree with that of another commit: `python tools/compare_commits.py REV SUITE …`.

The suites of `python -m benchmarks` run in turns with the code of either side, in the same hour on the same machine. A
row is one figure: Wayfare's best time now over its best time then. PyTorch's own change in the same rounds is shown
beside it: it should be 1.00, and what it differs by is the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Row = tuple[str, str]


def run_suite(tree: Path, suite: str, options: list[str]) -> list[dict[str, Any]]:
    """The measurements of one run of a suite with the code of a tree."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", suite, "--json", str(file), *options]
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True
        )
        if not file.exists():
            sys.exit(f"{suite} failed in {tree}:\n{done.stderr[-2000:]}")
        return list(json.loads(file.read_text(encoding="utf-8"))["measurements"])


def best(rows: list[dict[str, Any]], found: dict[Row, list[float]]) -> None:
    """Add the best time of each side of each row to what was found before, where it is better."""
    for row in rows:
        times = [min(side) for side in row["rounds"]]
        old = found.get((row["part"], row["work"]), times)
        found[row["part"], row["work"]] = [min(pair) for pair in zip(old, times, strict=False)]


def main() -> int:
    """Run the suites and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("suites", nargs="+", help="suites of `python -m benchmarks`")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side (2)")
    parser.add_argument("--full", action="store_true", help="long runs, not --quick ones")
    parser.add_argument("--only", help="only the parts whose name contains this")
    parser.add_argument("--limit", type=float, default=1.1, help="mark rows slower than this (1.1)")
    given = parser.parse_args()
    options = ([] if given.full else ["--quick"]) + (["--only", given.only] if given.only else [])
    slower = 0
    with TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), given.revision], cwd=ROOT, check=True)
        try:
            for suite in given.suites:
                now: dict[Row, list[float]] = {}
                then: dict[Row, list[float]] = {}
                for _ in range(given.rounds):
                    best(run_suite(other, suite, options), then)
                    best(run_suite(ROOT, suite, options), now)
                slower += show(suite, now, then, given.limit)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    print(f"{slower} rows are slower than {given.limit:.2f} times the other commit, beyond PyTorch's own change.")
    return 0


def show(suite: str, now: dict[Row, list[float]], then: dict[Row, list[float]], limit: float) -> int:
    """Print the rows that both sides have; returns how many are slower."""
    print(f"\n{suite}: this tree over the other commit, and PyTorch over itself", flush=True)
    slower = 0
    for (part, work), times in now.items():
        before = then.get((part, work))
        if before is None or not before[0]:
            continue
        ratio = times[0] / before[0]
        peer = times[1] / before[1] if len(times) > 1 and len(before) > 1 and before[1] else None
        mark = ratio > limit * max(peer or 1.0, 1.0)
        slower += mark
        beside = "" if peer is None else f"{peer:6.2f}"
        print(f"  {part[:22]:22} {work[:56]:56} {ratio:6.2f} {beside:6}{' slower' if mark else ''}", flush=True)
    return slower


if __name__ == "__main__":
    raise SystemExit(main())
