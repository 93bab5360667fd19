"""The console command `wayfare`."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from wayfare.cli import cache_report, doctor
from wayfare.cli.demo import command as demo_command
from wayfare.core.version import __version__
from wayfare.exporters import export_command, inspect_command
from wayfare.see.viewer import command as view_command

# What a shell reports for a program that an interrupt or a closed pipe ended.
INTERRUPTED, PIPE_CLOSED = 130, 141


class _Parser(argparse.ArgumentParser):
    """A parser that does not keep quiet about help that could not be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message or "")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="wayfare", description="Wayfare: the computation graph, drawn as plain Python runs."
    )
    parser.add_argument("--version", action="version", version=f"wayfare {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    show = "train small networks on numbers, words and trees, and show each stage of it"
    demo = commands.add_parser("demo", help=show, description=_sentence(show))
    demo_command.add_arguments(demo)
    look = "open a saved run in the browser"
    view_command.add_arguments(commands.add_parser("view", help=look, description=_sentence(look)))
    ship = "write a function or a module as a model file for ONNX Runtime or Wayfare, and try it"
    export_command.add_arguments(commands.add_parser("export", help=ship, description=_sentence(ship)))
    tell = "say what is in a model file: an ONNX model, or a program of wf.export"
    inspect_command.add_arguments(commands.add_parser("inspect", help=tell, description=_sentence(tell)))
    describe = "describe this installation, to paste into a bug report"
    examine = commands.add_parser("doctor", help=describe, description=_sentence(describe))
    examine.add_argument("--json", action="store_true", help="print JSON")
    keep = "show or clear the kernels kept on disk"
    cache_report.add_arguments(commands.add_parser("cache", help=keep, description=_sentence(keep)))
    return parser


def _sentence(text: str) -> str:
    """The line of a list of commands as the opening of that command's own help."""
    return f"{text[:1].upper()}{text[1:]}."


def _run(options: argparse.Namespace) -> int:
    status = 0
    match options.command:
        case "demo":
            status = demo_command.run(options)
        case "view":
            status = view_command.run(options)
        case "export":
            status = export_command.run(options)
        case "inspect":
            status = inspect_command.run(options)
        case "doctor":
            report = doctor.examine()
            print(json.dumps(report, indent=2) if options.json else doctor.as_text(report))
        case "cache":
            status = cache_report.run(options)
    # A reader that is gone, as in `wayfare demo | head`, shows here and not in the interpreter's last breath.
    sys.stdout.flush()
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    if sys.stderr is None:  # closed; what is printed to it would go to the output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open
    if sys.stdout is None:
        return _said("standard output is closed, so there is nowhere to write to")
    try:
        return _answer(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.filename is not None:
            return _said(f"cannot use {os.fsdecode(error.filename)!r}: {error.strerror}")
        _drop_output()
        return _said(f"cannot write to standard output: {error.strerror or error}")


def _answer(argv: Sequence[str] | None) -> int:
    parser = _parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit:
        sys.stdout.flush()  # of --help and --version
        raise
    if options.command is None:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A stream that cannot write "·" or "→" shows a question mark for it; that is no reason to stop.
        sys.stdout.reconfigure(errors="replace")
    return _run(options)


def _said(sentence: str) -> int:
    print(f"wayfare: {sentence}.", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """What is still to be written goes nowhere: the interpreter would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
