"""The command `wayfare inspect FILE`: what is in an ONNX model or a program of `wf.export`."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator

from wayfare.core.errors import WayfareError
from wayfare.core.format import bytes_text, counted
from wayfare.exporters.bundle.files import load_program
from wayfare.exporters.bundle.loaded import LoadedProgram
from wayfare.exporters.inspect.layout import MOST_PRINTED, headline, listed, times_text
from wayfare.exporters.inspect.model_file import inspect, is_safetensors
from wayfare.io.files import open_for_reading, path_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command to a parser of the command line."""
    parser.add_argument("file", metavar="FILE", help="a model file (model.onnx) or a program (model.wf)")


def run(options: argparse.Namespace) -> int:
    """Print what is in the file; returns the exit status."""
    try:
        name = path_text("inspect", options.file)
        with open_for_reading(name, "inspect") as file:
            start = file.read(9)
        if is_safetensors(start):
            print(program_text(name, load_program(name, compiled=False)))
        else:
            print(inspect(name))
    except WayfareError as error:
        # No code of the user was running, so the sentence is printed without a line and without the function's name.
        _, _, sentence = error.sentence.partition(": ")
        print(f"wayfare inspect: {sentence.rstrip('.')}. {error.fix}".rstrip(), file=sys.stderr)
        return 1
    return 0


def program_text(path: str, program: LoadedProgram) -> str:
    """What a program file holds, in the layout of `wf.onnx.inspect`."""
    return "\n".join(_lines(os.path.basename(path), program))


def _lines(name: str, program: LoadedProgram) -> Iterator[str]:
    weights = program.state_dict()
    size = bytes_text(sum(w.numel() * w.dtype.itemsize for w in weights.values()))
    yield from headline(name, [counted(sum(program.ops.values()), "step"), f"{size} of weights"])
    yield from listed("written", [f"by wf.export from {program.name}"], 1)
    for title, specs in (("inputs", program.inputs), ("outputs", program.outputs)):
        yield from listed(title, [f"{name} {spec}" for name, spec in specs.items()], MOST_PRINTED)
    yield from listed("ops", times_text(Counter(dict(sorted(program.ops.items())))), MOST_PRINTED)
    yield from listed("weights", [f"{counted(len(weights), 'tensor')}, {size}, in the file"] if weights else [])
