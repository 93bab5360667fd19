"""`wf.export` and `wf.load_program`: the file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from wayfare.errors import ArgumentError, ExportError, FileFormatError
from wayfare.io.files import open_for_reading, path_text, read, write
from wayfare.io.header import strict_json
from wayfare.io.structure import Plan
from wayfare.onnx.export import Traced
from wayfare.program.decode import Decoding
from wayfare.program.encode import Encoding
from wayfare.program.loaded import LoadedProgram
from wayfare.program.numbers import Bad, refused
from wayfare.tensor import wrap
from wayfare.version import __version__

_KEY, _WRITER = "wayfare.program", "wayfare.version"
# No value of a program may take more bytes than this, unless the caller says so.
_LIMIT = 1 << 32


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
    program = traced.program
    sizes = [int.__int__(v.shape[axis]) if axis >= 0 else 0 for v, axis in program.symbols]
    function = str(getattr(fn_or_module, "__name__", type(fn_or_module).__name__)).strip("<>") or "program"
    names = [name or f"size_{number}" for number, name in enumerate(traced.size_names)]
    encoding = Encoding(program, function, names, sizes)
    planned = Plan("program")
    planned.arrays = encoding.arrays
    text = json.dumps(encoding.document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    write(planned, name, {_KEY: text, _WRITER: __version__})
    loaded = load_program(name)
    _compare(loaded, traced)
    return loaded


def _compare(loaded: LoadedProgram, traced: Any) -> None:
    """The file must do what the function did, at every size it was tried at."""
    for made in traced.runs:
        results = loaded._run(*[wrap(np.array(a)) for a in made.arrays])
        for name, got, want in zip(loaded.output_names, results, made.results, strict=True):
            near = np.allclose(got.numpy(), want, rtol=1e-4, atol=1e-5, equal_nan=want.dtype.kind == "f")
            if got.shape != want.shape or not near:
                raise ExportError(f"export: {name} of the program differs from that of the function",
                                  fix="Please report this with the function.")  # fmt: skip


def load_program(path: str | os.PathLike[str], *, compiled: bool = True, limit: int = _LIMIT) -> LoadedProgram:
    """Read a file of `wf.export`. Nothing in it is code: it names ops of Wayfare's registry, and all is checked.

    `limit` bounds the bytes of any one value that the program makes; a file that would make larger ones is refused.
    """
    name = path_text("load_program", path)
    if type(limit) is not int or limit < 1:
        raise ArgumentError(f"load_program: limit must be a number of bytes, it is {limit!r}")
    where = repr(name)
    with open_for_reading(name) as file:
        tensors, texts = read(file, os.fstat(file.fileno()).st_size, where)
    if _KEY not in texts or not isinstance(tensors, dict):
        raise FileFormatError(f"load_program: {where} holds tensors and no program",
                              fix="Read it with wf.load, or make a program with wf.export.")  # fmt: skip
    document = strict_json(texts[_KEY], f"the graph of {where}")
    try:
        found = Decoding(document, {key: t.numpy() for key, t in tensors.items()}, limit)
    except Bad as why:
        raise refused(where, why) from None
    except RecursionError:
        raise refused(where, "its graph is nested too deeply") from None
    return LoadedProgram(found.program, found.function, found.size_names, limit, compiled)
