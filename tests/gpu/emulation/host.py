"""A launcher on NumPy arrays: the text of a kernel is compiled with g++ and runs on the CPU.

    functions = HostLauncher().compile(text)
    launcher.launch(functions["name"], grid=(4, 1, 1), block=(64, 1, 1), shared=0, words=block_of_words)

`words` is a ctypes array of 64-bit integers, the parameter of the kernel (see wayfare/codegen/cuda/launch.py).
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from wayfare.codegen.cuda.layout import Limits
from wayfare.codegen.loop.expr import NUMPY

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
FOLDER = Path(__file__).resolve().parents[3] / ".pytest_cache" / "emulation"
COMPILER = shutil.which("g++")
KERNEL = re.compile(
    r'extern "C" __global__ void(?: __launch_bounds__\([^)]*\))? (\w+)\(const (?:__grid_constant__ )?(\w+) a\)'
)
FUNCTION = re.compile(r"__device__(?: __forceinline__)? [\w<>:&* ]*?(\w+)\(")
WAITS = re.compile(r"__sync|__shfl")
# Small, so that short arrays meet every form of a kernel.
SMALL = Limits(block=64, processors=6, most_blocks=3, lanes_row=96, chunk=64, column_chunk=16)
FAILURES = {1: "threads wait for each other for ever", 2: "the block has too many threads"}
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno", "-w", "-fPIC",
         "-U_FORTIFY_SOURCE", "-fcf-protection=none"]  # fmt: skip


class HostLauncher:
    """Compiles kernels for the CPU and runs them on NumPy arrays."""

    driver = None

    def __init__(self, limits=SMALL):
        self.limits = limits
        # The kernels that ran, in order.
        self.names = []
        self._compiled = {}
        # While a graph is captured: what is to run when it is replayed.
        self._captured = None

    def empty(self, shape, dtype):
        out = np.empty(shape, dtype)
        # What was not written must not look like a result.
        out.view(np.uint8).fill(0xA5) if out.ndim else out.fill(np.array(0xA5, np.uint8).astype(dtype))
        return out

    def pointer(self, array):
        return array.__array_interface__["data"][0]

    def to_device(self, array):
        """The same array where kernels can read it: here it is there already."""
        return array

    to_host = to_device

    def compile(self, text):
        """The functions of a text, by name."""
        if text not in self._compiled:
            self.preload([text])
        return self._compiled[text]

    def preload(self, texts):
        """Compile many texts at once, which takes a fraction of the time. Later `compile` finds them."""
        texts = [t for t in dict.fromkeys(texts) if t not in self._compiled]
        if not texts:
            return
        library = ctypes.CDLL(str(_built("\n".join(texts))))
        for text in texts:
            functions = {}
            for name, _ in KERNEL.findall(text):
                function = library["run_" + name]
                function.argtypes = [ctypes.c_void_p] * 3
                functions[name] = function
            self._compiled[text] = functions

    def launch(self, function, grid, block, shared, words):
        """Run one launch to its end."""
        words = type(words).from_buffer_copy(words)
        self._submit(lambda: self._run(function, grid, block, words))

    def _submit(self, work):
        if self._captured is None:
            work()
        else:
            self._captured.append(work)

    def _run(self, function, grid, block, words):
        self.names.append(function.__name__.removeprefix("run_"))
        sizes = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block)
        status = function(*sizes, words)
        if status:
            raise RuntimeError(f"{function.__name__}: {FAILURES[status]}")

    def gemm(self, call, a, b, out):
        """What cuBLAS would compute from these very arguments."""
        self._submit(lambda: _multiply(call, a, b, out))

    def to_device(self, array):
        return np.array(array)

    def stream(self):
        return 0

    def capture(self, work):
        """A graph: launches are noted, not run."""
        self._captured, held = [], self._captured
        try:
            work()
            noted = self._captured
        finally:
            self._captured = held
        return lambda: [each() for each in noted] and None


def _multiply(g, a, b, out):
    def matrices(address, rows, columns, transposed, leading, step, dtype=NUMPY[g.dtype]):
        item = dtype.itemsize
        strides = (step * item, *((item, leading * item) if transposed else (leading * item, item)))
        reach = sum(s * (n - 1) for s, n in zip(strides, (g.batch, rows, columns), strict=True)) + item
        memory = (ctypes.c_char * reach).from_address(address)
        return np.ndarray((g.batch, rows, columns), dtype, memory, 0, strides)

    x = matrices(a, g.rows, g.inner, g.transposed_a, g.leading[0], g.steps[0])
    y = matrices(b, g.inner, g.columns, g.transposed_b, g.leading[1], g.steps[1])
    target = matrices(out, g.rows, g.columns, False, g.leading[2], g.steps[2], NUMPY[g.out])
    wide = np.float64 if g.dtype == "f64" else np.float32
    made = x.astype(wide) @ y.astype(wide)
    target[...] = (made + target if g.add else made).astype(target.dtype)


def _bodies(text):
    """Each kernel's name, parameter and body."""
    found = list(KERNEL.finditer(text))
    for place, match in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(text)
        yield match[1], match[2], text[match.start() : end]


def _waiting(text):
    """A pattern for everything at which a thread may wait for others, also in functions that the text defines."""
    found = list(FUNCTION.finditer(text))
    ends = [*(f.start() for f in found[1:]), len(text)]
    bodies = [(f[1], text[f.end() : end].split('extern "C"')[0]) for f, end in zip(found, ends, strict=False)]
    names = set()
    while True:
        pattern = re.compile("|".join([WAITS.pattern, *(rf"\b{name}\(" for name in sorted(names))]))
        more = {name for name, body in bodies if pattern.search(body)} - names
        if not more:
            return pattern
        names |= more


def _built(text):
    """The shared library of a text; kept by its contents."""
    seen, stubs, waiting = set(), [], _waiting(text)
    for name, words, body in _bodies(text):
        if name in seen:
            continue
        seen.add(name)
        waits = 1 if waiting.search(body) else 0
        stubs.append(
            f'extern "C" int run_{name}(const unsigned* grid, const unsigned* block, const void* words) {{\n'
            f"  return emulate(grid, block, {waits}, [](const void* w) {{ {name}(*(const {words}*)w); }}, words);\n}}\n"
        )
    whole = "\n".join([text, *stubs])
    header = _header()
    made = FOLDER / f"{_key(header.name, whole)}.so"
    if not made.exists():
        _compile(whole, made, "-shared", "-include", str(header), "-x", "c++", last=["-lm"])
    return made


@cache
def _header():
    """The header, compiled once, because it takes longer than most kernels; g++ finds the result beside it."""
    text = HEADER.read_text()
    made = FOLDER / f"{_key(text)}.h"
    if not (compiled := made.with_suffix(".h.gch")).exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.rename(made)
        _compile(text, compiled, "-x", "c++-header")
    return made


def _key(*texts):
    return hashlib.sha256("\n".join([*texts, *FLAGS]).encode()).hexdigest()[:32]


def _compile(text, made, *flags, last=()):
    """Compile `text` to the file `made`, which appears whole, also if other processes make it as well."""
    source, part = made.with_suffix(f".{os.getpid()}.cpp"), made.with_suffix(f".{os.getpid()}.part")
    source.write_text(text)
    command = [COMPILER, *FLAGS, *flags, str(source), "-o", str(part), *last]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"g++ cannot compile a kernel ({source}):\n{done.stderr[:4000]}")
    part.rename(made)
    source.unlink()
