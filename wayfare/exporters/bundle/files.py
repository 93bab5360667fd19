"""`wf.export` and `wf.load_program`: writing and reading `.wf` files."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.core.errors import ArgumentError, ExportError, FileFormatError, WayfareError
from wayfare.core.numpy_math import Array
from wayfare.core.spec import FLOAT_KINDS
from wayfare.core.tensor import wrap
from wayfare.core.version import __version__
from wayfare.exporters.bundle.decode import Decoding
from wayfare.exporters.bundle.encode import Encoding
from wayfare.exporters.bundle.json_values import Bad, refused
from wayfare.exporters.bundle.loaded import LoadedProgram
from wayfare.exporters.compare import OTHER_WAY, compare_calls
from wayfare.exporters.traced import Traced
from wayfare.io.files import open_for_reading, path_text, read, write
from wayfare.io.header import strict_json
from wayfare.io.structure import Plan

_KEY, _WRITER = "wayfare.program", "wayfare.version"
# The default limit of the bytes that the values of a call take.
_LIMIT = 1 << 32
# The default limit of loop iterations in one call.
_TURNS = 1 << 24


def export(
    fn_or_module: Any, examples: Any, path: str | os.PathLike[str], input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None, dynamic_axes: Any = None,
) -> LoadedProgram:  # fmt: skip
    """Write a function or module as Wayfare's own static program, read it back, and compare it on the examples.

    `examples` is a tuple of arguments, or a list of such tuples: one for each way the function can take. Axes in
    `dynamic_axes` (`{"x": {0: "batch"}}`) stay open. `wf.load_program(path)` runs it without the Python source.
    """
    name = path_text("export", path)
    traced = Traced(fn_or_module, examples, input_names, dynamic_axes, output_names)
    function = str(getattr(fn_or_module, "__name__", type(fn_or_module).__name__)).strip("<>") or "program"

    def prove() -> tuple[Encoding, str]:
        encoding, text = _encoded(traced, function)
        try:
            loaded = _decoded(text, encoding.arrays, repr(name), _LIMIT, _TURNS, compiled=False)
        except Bad as why:
            raise ExportError(f"export: a program cannot hold what the function does: {why}",
                              fix="Give its functions arguments of the types that they name.") from None  # fmt: skip
        _compare(loaded, traced)
        return encoding, text

    encoding, text = traced.proved(prove)
    planned = Plan("program")
    planned.arrays = encoding.arrays
    write(planned, name, {_KEY: text, _WRITER: __version__})
    for note in traced.notes:
        warnings.warn(f"export: {note}", stacklevel=2)
    return load_program(name)


def _encoded(traced: Traced, function: str) -> tuple[Encoding, str]:
    """What is written: the weights, and the graph as JSON text."""
    program = traced.program
    sizes = [int.__int__(v.shape[axis]) if axis >= 0 else 0 for v, axis in program.symbols]
    names = [name or f"size_{number}" for number, name in enumerate(traced.size_names)]
    encoding = Encoding(program, function, names, sizes)
    return encoding, json.dumps(encoding.document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _compare(loaded: LoadedProgram, traced: Traced) -> None:
    """Check that the program gives the results of the function, for all traced calls and for probe inputs."""

    def compare(arrays: Sequence[Array], wanted: Sequence[Array], fresh: bool) -> None:
        shown = traced.examples.sizes_text(arrays)
        try:
            results = loaded._results(*[wrap(np.array(a)) for a in arrays])
        except WayfareError as error:
            raise ExportError(f"export: with {shown} the program cannot run: {error.sentence}",
                              fix=OTHER_WAY) from error  # fmt: skip
        for name, got, want in zip(loaded.output_names, results, wanted, strict=True):
            near = got.shape == want.shape and np.allclose(got.numpy(), want, rtol=1e-4, atol=1e-5,
                                                           equal_nan=want.dtype.kind in FLOAT_KINDS)  # fmt: skip
            if not near:
                raise ExportError(f"export: with {shown} {name} of the program differs from that of the function",
                                  fix=OTHER_WAY)  # fmt: skip

    compare_calls(traced, compare)


def load_program(
    path: str | os.PathLike[str], *, compiled: bool = True, limit: int = _LIMIT, turns: int = _TURNS
) -> LoadedProgram:
    """Read a file of `wf.export`. Nothing in it is code: it names ops of Wayfare's registry, and all is checked.

    Each op is checked again before it runs, with the sizes that are really there. `limit` bounds the bytes that the
    values of a call hold at a time, with the workspace of ops; a file that would make more is refused.
    `turns` bounds how often the loops of the program turn in one call, all together: a file may describe one that never
    ends.
    """
    name = path_text("load_program", path)
    for what, number in (("limit must be a number of bytes", limit), ("turns must be a number", turns)):
        if type(number) is not int or number < 1:
            raise ArgumentError(f"load_program: {what}, it is {number!r}")
    where = repr(name)
    with open_for_reading(name) as file:
        tensors, texts = read(file, os.fstat(file.fileno()).st_size, where)
    if _KEY not in texts or not isinstance(tensors, dict):
        raise FileFormatError(f"load_program: {where} holds tensors and no program",
                              fix="Read it with wf.load, or make a program with wf.export.")  # fmt: skip
    try:
        return _decoded(texts[_KEY], {key: t.numpy() for key, t in tensors.items()}, where, limit, turns, compiled)
    except Bad as why:
        raise refused(where, why) from None


def _decoded(text: str, arrays: dict[str, Array], where: str, limit: int, turns: int, compiled: bool) -> LoadedProgram:
    document = strict_json(text, f"the graph of {where}")
    try:
        found = Decoding(document, arrays, limit)
    except RecursionError:
        raise Bad("its graph is nested too deeply") from None
    return LoadedProgram(found.program, found.function, found.size_names, limit, turns, compiled)
