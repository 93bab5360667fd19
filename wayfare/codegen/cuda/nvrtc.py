"""NVRTC through ctypes: from CUDA C to PTX or to machine code (a cubin). No GPU and no CUDA toolkit is needed for it.

Results are kept in memory and in the kernel cache on disk, by text, architecture and version of NVRTC.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from wayfare.codegen.runtime.cache import default_store, key_of
from wayfare.core.counters import COUNTERS
from wayfare.core.errors import LoopError, NotReadyError
from wayfare.core.locks import lock

# Products and sums are contracted only where the language says so; the rest of IEEE arithmetic is the default.
_OPTIONS = ("--std=c++17", "--fmad=false", "--disable-warnings")
# How many results are kept in memory.
_KEPT = 4096
_COMPILING = lock()


class Nvrtc:
    """The library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        # Compute capabilities, such as 90 for 9.0.
        self.supported = sorted(known)

    def architecture(self, capability: int) -> str:
        """What to compile for on a GPU of a compute capability: machine code, or PTX if the GPU is newer than NVRTC."""
        if capability in self.supported:
            return f"sm_{capability}"
        older = [c for c in self.supported if c < capability]
        if not older:
            raise NotReadyError(f"a GPU of compute capability {capability / 10} is too old for NVRTC {self.version}",
                                fix=f"Use a GPU of {self.supported[0] / 10} or later.")  # fmt: skip
        return f"compute_{older[-1]}"

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            said = self._library.nvrtcGetErrorString(status).decode()
            raise LoopError(f"NVRTC: {name} failed: {said}")

    def compile(self, text: str, architecture: str, name: str = "kernel.cu") -> bytes:
        """Compile CUDA C: to a cubin for "sm_90", to PTX for "compute_90"."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        try:
            options = [o.encode() for o in (f"--gpu-architecture={architecture}", *_OPTIONS)]
            listed = (ctypes.c_char_p * len(options))(*options)
            status = self._library.nvrtcCompileProgram(program, len(options), listed)
            if status:
                said = self._library.nvrtcGetErrorString(status).decode()
                log = self._result(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
                raise CompileError(f"NVRTC cannot compile a kernel for {architecture}: {said}\n{log.strip()}")
            kind = "nvrtcGetPTX" if architecture.startswith("compute") else "nvrtcGetCUBIN"
            return self._result(program, kind)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _result(self, program: ctypes.c_void_p, name: str) -> bytes:
        """A text or machine code of a program. Texts end with a zero byte, as the driver wants it."""
        size = ctypes.c_size_t()
        self._call(name + "Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(name, program, data)
        return data.raw


def _candidates() -> Iterator[str]:
    """Where the library may be: NVIDIA's packages for Python, then the system."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for pattern in ("*/lib/libnvrtc.so*", "*/bin/nvrtc64*.dll", "*/bin/x86_64/nvrtc64*.dll"):
            found = [p for p in Path(folder).glob(pattern) if "builtins" not in p.name and "alt" not in p.name]
            yield from (str(p) for p in sorted(found, reverse=True))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")


class CompileError(LoopError):
    """A kernel that the compiler refuses."""


@cache
def nvrtc() -> Nvrtc:
    """The library, loaded once."""
    for path in _candidates():
        try:
            return Nvrtc(ctypes.CDLL(path))
        except OSError:
            continue
    raise NotReadyError("NVRTC, NVIDIA's compiler for kernels, is not installed",
                        fix='Install it with: pip install "wayfare[cuda]".')  # fmt: skip


def available() -> bool:
    """Is NVRTC installed?"""
    try:
        nvrtc()
    except NotReadyError:
        return False
    return True


_compiled: dict[str, bytes] = {}


def compiled(text: str, architecture: str, about: str = "") -> bytes:
    """Machine code or PTX: from memory, from the kernel cache on disk, or compiled now."""
    compiler = nvrtc()
    key = key_of("cuda", text, architecture, compiler.version, *_OPTIONS)
    found = _compiled.get(key)
    if found is not None:
        return found
    with _COMPILING:
        store = default_store()
        found = store.get(key)
        if found is not None:
            COUNTERS.kernels_loaded += 1
        else:
            found = compiler.compile(text, architecture)
            COUNTERS.kernels_built += 1
            store.put(key, found, {"name": about or "kernel", "source": text[-2000:], "cpu": architecture})
        if len(_compiled) >= _KEPT:
            _compiled.clear()
        _compiled[key] = found
    return found
