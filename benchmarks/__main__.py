"""The command `python -m benchmarks SUITE`: finds the suites of this package and runs one.

A suite is any module here with a `SUMMARY` line and a `run(options) -> Report`: adding one is adding a file.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks.harness import BenchmarkError, Options, available_cores
from benchmarks.neighbours import neighbours
from benchmarks.works import CPU


def suites() -> dict[str, ModuleType]:
    """Every suite by name, in alphabetical order."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"benchmarks.{info.name}")
        if hasattr(module, "SUMMARY") and hasattr(module, "run"):
            found[info.name] = module
    return found


def parser(known: dict[str, ModuleType]) -> argparse.ArgumentParser:
    """The command line, one subcommand for each suite."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=benchmarks.__doc__)
    commands = top.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name, module in known.items():
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        add = command.add_argument
        add("--quick", action="store_true", help="few short rounds: a look, not a measurement")
        add("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
        add("--threads", type=int, default=available_cores(), metavar="N", help="threads of each side (all)")
        add("--only", metavar="PART,...", help="run the parts whose name contains one of these")
        add("--busy", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile (0)")
        add("--subject", default="wayfare", metavar="MODULE", help="what is measured (wayfare)")
        add("--peer", default="torch", metavar="MODULE", help="what it is measured against (torch)")
        if hasattr(module, "add_arguments"):
            module.add_arguments(command)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the suite that the command line names; returns the exit status."""
    known = suites()
    parsed = parser(known).parse_args(arguments)
    options = Options(
        quick=parsed.quick, threads=parsed.threads, only=parsed.only, subject=parsed.subject, peer=parsed.peer,
        busy=parsed.busy, json=parsed.json, device=getattr(parsed, "device", CPU),
        budget=getattr(parsed, "budget", None),
    )  # fmt: skip
    try:
        with neighbours(options.busy):
            report = known[parsed.suite].run(options)
    except BenchmarkError as error:
        print(f"\nbenchmarks: {error}", file=sys.stderr)
        return 1
    report.keep()
    return 0


if __name__ == "__main__":
    sys.exit(main())
