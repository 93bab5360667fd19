"""The command `wayfare export module:function --out model.onnx` (or model.wf)."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from typing import Any

import numpy as np

from wayfare.core.callsite import current_site
from wayfare.core.errors import ArgumentError, WayfareError
from wayfare.core.op_failure import no_memory
from wayfare.core.spec import OF_NUMPY, bool_
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.bundle.files import export as export_program
from wayfare.exporters.inspect_command import program_text
from wayfare.exporters.onnx.export import export as export_model

_INPUT = re.compile(r"(?P<name>\w+)=(?P<dtype>\w+)\[(?P<sizes>[^\]]*)\](?:<(?P<below>\d+))?", re.ASCII)
_MOST_DIMENSIONS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command to a parser of the command line."""
    parser.add_argument("target", metavar="module:function", help="a function or a module of yours, as Python finds it")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write: a model for "
                        "ONNX Runtime (model.onnx), or a program of Wayfare's own (model.wf)")  # fmt: skip
    parser.add_argument(
        "--input", action="append", default=[], metavar="SPEC", dest="inputs",
        help="an input: 'x=float32[batch=2,10]', with a name for each size that stays open; numbers are drawn at "
        "random, 'words=int64[batch=2,length=7]<1000' from 0 to 999; once for each input",
    )  # fmt: skip
    parser.add_argument(
        "--examples", metavar="module:name",
        help="arguments of a call (a tuple), several (a list of tuples), or a function that gives them",
    )  # fmt: skip
    parser.add_argument("--opset", type=int, metavar="N", help="the version of ONNX's operator set (21)")


def run(options: argparse.Namespace) -> int:
    """Write the file and print the report; returns the exit status."""
    before = list(sys.path)
    started = f" ({current_site()})"
    try:
        sys.path.insert(0, _working_folder())
        if options.inputs and options.examples:
            raise ArgumentError("export: --input and --examples both say what the function is called with",
                                fix="Give one of them.")  # fmt: skip
        function = find(options.target)
        names: list[str] | None = None
        axes: dict[str, dict[int, str]] = {}
        examples: Any = None
        if options.inputs:
            names, axes, examples = read_inputs(options.inputs)
        if options.examples:
            examples = find(options.examples)
            examples = examples() if callable(examples) else examples
        if examples is None:
            raise ArgumentError("export: there are no examples", fix="Give --input for each input, or --examples.")
        if options.out.endswith(".wf"):
            if options.opset is not None:
                raise ArgumentError("export: a program (.wf) has no operator set", fix="Leave --opset out.")
            print(program_text(options.out, export_program(function, examples, options.out, names, dynamic_axes=axes)))
        else:
            opset = {} if options.opset is None else {"opset": options.opset}
            print(export_model(function, examples, options.out, names, dynamic_axes=axes, **opset))
    except WayfareError as error:
        # If no code of the user was running, the error names the line that started the command: leave it out.
        print(f"wayfare export: {str(error).replace(started, '').removeprefix('export: ')}", file=sys.stderr)
        return 1
    finally:
        sys.path[:] = before
    return 0


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        raise ArgumentError("export: the working directory is not there any more",
                            fix="Change to one that is.") from None  # fmt: skip


def find(target: str) -> Any:
    """The object that `module:name` names."""
    module, _, path = target.partition(":")
    if not module or not path:
        raise ArgumentError(f"export: {target!r} is not of the form module:function")
    if not all(part.isidentifier() for part in module.split(".")) or module.endswith(".py"):
        raise ArgumentError(f"export: {module!r} is not the name of a module",
                            fix="Write it as in an import, without a folder and without .py: mymodel:net.")  # fmt: skip
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"export: there is no module {error.name!r} here") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ArgumentError(f"export: {module} has no {path!r}")
        found = getattr(found, name)
    return found


def read_inputs(specs: list[str]) -> tuple[list[str], dict[str, dict[int, str]], tuple[Tensor, ...]]:
    """Names, dynamic axes and random tensors from texts such as `x=float32[batch=2,10]`."""
    rng = np.random.default_rng(0)
    names: list[str] = []
    axes: dict[str, dict[int, str]] = {}
    tensors: list[Tensor] = []
    for spec in specs:
        found = _INPUT.fullmatch(spec.replace(" ", ""))
        if found is None:
            raise ArgumentError(f"export: cannot read the input {spec!r}", fix="Write it like x=float32[batch=2,10].")
        name = found["name"]
        if name in axes:
            raise ArgumentError(f"export: the input {name!r} is given twice")
        sizes: list[int] = []
        axes[name] = {}
        for axis, part in enumerate(filter(None, found["sizes"].split(","))):
            label, _, number = part.rpartition("=")
            if not number.isdecimal():
                raise ArgumentError(f"export: {part!r} is not a size in {spec!r}", fix="Write 10, or batch=2.")
            sizes.append(int(number))
            if label:
                axes[name][axis] = label
        names.append(name)
        tensors.append(_drawn(rng, found["dtype"], sizes, found["below"]))
    return names, axes, tuple(tensors)


def _drawn(rng: Any, dtype_name: str, sizes: list[int], below: str | None) -> Tensor:
    dtype = next((d for d in OF_NUMPY.values() if d.name == dtype_name), None)
    if dtype is None:
        raise ArgumentError(f"export: there is no dtype {dtype_name!r}", fix="Use float32, int64, bool, ….")
    if below and dtype.is_floating_point:
        raise ArgumentError(f"export: {dtype_name} is drawn without a bound", fix=f"Leave <{below:.20} out.")
    most = 2 if dtype is bool_ else 1 if dtype.is_floating_point else int(np.iinfo(dtype.numpy).max) + 1
    bound = int(below) if below else 2
    if below and not 1 <= bound <= most:
        raise ArgumentError(f"export: the bound of {dtype_name} must be from 1 to {most}, it is {below:.30}")
    if len(sizes) > _MOST_DIMENSIONS:
        raise ArgumentError(f"export: a tensor has at most {_MOST_DIMENSIONS} dimensions, not {len(sizes)}")
    try:
        drawn = rng.normal(size=sizes) if dtype.is_floating_point else rng.integers(0, bound, size=sizes)
        return wrap(drawn.astype(dtype.numpy))
    except (MemoryError, ValueError, OverflowError):  # NumPy raises the latter two for sizes it cannot count
        raise no_memory("export", sizes, dtype.numpy) from None
