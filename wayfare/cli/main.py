"""The console command `wayfare`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from wayfare.cli import cache_report, doctor
from wayfare.cli.demo import command as demo_command
from wayfare.core.version import __version__
from wayfare.distributed import launch
from wayfare.exporters import export_command, inspect_command
from wayfare.see.viewer import command as view_command

# What a shell reports for a program that an interrupt or a closed pipe ended.
INTERRUPTED, PIPE_CLOSED = 130, 141


class _Parser(argparse.ArgumentParser):
    """A parser that does not keep quiet about help that could not be written."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message or "")


# What each command is for; `add_arguments` and `run` of its module.
COMMANDS: dict[str, tuple[str, Any]] = {
    "demo": ("train small networks on numbers, words and trees, and show each stage of it", demo_command),
    "launch": ("start a script on several processes that train together", launch),
    "view": ("open a saved run in the browser", view_command),
    "export": ("write a function or a module as a model file for ONNX Runtime or Wayfare, and try it", export_command),
    "inspect": ("say what is in a model file: an ONNX model, or a program of wf.export", inspect_command),
    "doctor": ("describe this installation, to paste into a bug report", doctor),
    "cache": ("show or clear the kernels kept on disk", cache_report),
}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="wayfare", description="Wayfare: the computation graph, drawn as plain Python runs."
    )
    parser.add_argument("--version", action="version", version=f"wayfare {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, (text, module) in COMMANDS.items():
        # The line of the list of commands opens the command's own help.
        module.add_arguments(commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}."))
    return parser


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
    given = sys.argv[1:] if argv is None else argv
    try:
        options = parser.parse_args(launch.joined(given) if given[:1] == ["launch"] else given)
    except SystemExit:
        sys.stdout.flush()  # of --help and --version
        raise
    if options.command is None:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A stream that cannot write "·" or "→" shows a question mark for it; the program goes on.
        sys.stdout.reconfigure(errors="replace")
    status: int = COMMANDS[options.command][1].run(options)
    # A reader that is gone, as in `wayfare demo | head`, shows here and not in the interpreter's last breath.
    sys.stdout.flush()
    return status


def _said(sentence: str) -> int:
    print(f"wayfare: {sentence}.", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """Drop what is still to be written: the interpreter would try again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
