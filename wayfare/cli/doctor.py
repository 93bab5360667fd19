"""`wayfare doctor`: what one pastes into a bug report. It looks at the machine and changes nothing."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy

import wayfare as wf
from wayfare.codegen.cuda.nvrtc import available, nvrtc
from wayfare.core.config import settings
from wayfare.core.device import backend
from wayfare.core.errors import WayfareError
from wayfare.core.native import STATE_OF_NATIVE
from wayfare.core.version import __version__

# A report is a section's name → an entry's name → what was found.
Report = dict[str, dict[str, str]]

WIDTH = 80
# The instruction sets that decide how fast numerical code runs, as Linux names them.
VECTOR_FEATURES = (
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_bf16",
    "avx512_fp16", "amx_tile", "asimd", "asimdhp", "asimddp", "bf16", "sve", "sve2",
)  # fmt: skip
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_PATH", "CUPY_ACCELERATORS")
UNKNOWN = "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `wayfare doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    report = examine()
    print(json.dumps(report, indent=2) if options.json else as_text(report))
    return 0


def examine() -> Report:
    """Look at everything once."""
    features = _cpu_features()
    blas = _blas()
    return {
        "versions": {
            "wayfare": __version__,
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "numpy": _version_of("numpy"),
            "scipy": _version_of("scipy"),
            "rich": _version_of("rich"),
            "llvmlite": _version_of("llvmlite"),
            "cupy": _cupy(),
        },
        "machine": {
            "system": platform.platform(),
            "cpu": _cpu_model(),
            "cpu features": " ".join(features) or UNKNOWN,
            "memory": _memory(),
        },
        "computing": {
            "blas": f"{blas.get('name', UNKNOWN)} {blas.get('version', '')}".strip(),
            "blas build": str(blas.get("openblas configuration", UNKNOWN)),
            "processors": _processors(),
            "thread settings": _environment(THREAD_VARIABLES),
            "wayfare settings": _environment(sorted(n for n in os.environ if n.startswith("WAYFARE_"))),
            "llvm": _llvm(),
            "native module": STATE_OF_NATIVE,
            "threads": str(settings.num_threads),
            "kernel cache": "off" if settings.cache_folder is None else str(settings.cache_folder),
            "devices": ", ".join(["cpu", *(f"cuda:{number}" for number in range(wf.cuda.device_count()))]),
        },
        "gpu": _gpus(),
    }


def as_text(report: Report) -> str:
    """A report to read: aligned, and wrapped at 80 columns."""
    width = max(len(name) for entries in report.values() for name in entries)
    lines: list[str] = []
    for section, entries in report.items():
        lines += ["", section] if lines else [section]
        for name, found in entries.items():
            label = f"  {name.ljust(width)}  "
            lines += textwrap.wrap(
                found, WIDTH, initial_indent=label, subsequent_indent=" " * len(label)
            ) or [label.rstrip()]
    return "\n".join(lines)


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _version_of(distribution: str) -> str:
    # Asked of the installed metadata: importing llvmlite to read its version would load all of LLVM.
    return metadata.version(distribution) if _installed(distribution) else "not installed"


def _llvm() -> str:
    """Is LLVM there, does it load, and which processor does it make code for?"""
    if not _installed("llvmlite"):
        return "absent"
    try:
        name = import_module("llvmlite.binding").get_host_cpu_name()
    except Exception as error:  # the report is there to show any error of the library
        return f"present, but it does not load: {error}"
    return f"present, for {name}"


def _cupy() -> str:
    """The version of CuPy, whose distributions are named by the version of CUDA."""
    found = {each.name for each in metadata.distributions() if each.name and each.name.startswith("cupy")}
    return ", ".join(f"{name} {_version_of(name)}" for name in sorted(found)) or "not installed"


def _gpus() -> dict[str, str]:
    """What there is for device="cuda", or why it cannot be used."""
    try:
        wf.device("cuda")
        cuda: Any = backend("cuda")
        runtime, found = cuda.xp.cuda.runtime, {"state": "ready"}
        for number in range(wf.cuda.device_count()):
            about, (free, total) = wf.cuda.get_device_properties(number), wf.cuda.mem_get_info(number)
            found[f"cuda:{number}"] = (
                f"{about.name}, compute capability {about.major}.{about.minor}, {total / 2**30:.1f} GiB, of which "
                f"{free / 2**30:.1f} GiB are free"
            )
        versions = {"driver": runtime.driverGetVersion(), "cuda": runtime.runtimeGetVersion()}
        found |= {name: f"{version // 1000}.{version % 1000 // 10}" for name, version in versions.items()}
        found["nvrtc"] = nvrtc().version if available() else 'not found; pip install "wayfare[cuda]" brings it'
    except WayfareError as error:
        found = {"state": f"not there: {error.sentence.rstrip('.')}. {error.fix}"}
    except Exception as error:  # as for LLVM
        found = {"state": f"present, but it does not work: {error}"}
    return found | {"settings": _environment(CUDA_VARIABLES)}


def _text_of(path: str) -> str:
    """A file's text, or nothing where the system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpuinfo() -> Mapping[str, str]:
    """The first processor's entries in Linux's list of processors."""
    first = _text_of("/proc/cpuinfo").strip().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _cpu_model() -> str:
    if model := _cpuinfo().get("model name"):
        return model
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        if model := asked.stdout.strip():
            return model
    return platform.processor() or platform.machine() or UNKNOWN


def _cpu_features() -> list[str]:
    info = _cpuinfo()
    present = set((info.get("flags") or info.get("Features") or "").split())
    if known := [name for name in VECTOR_FEATURES if name in present]:
        return known
    simd = _numpy_config().get("SIMD Extensions", {})
    return [str(name).lower() for name in (*simd.get("baseline", ()), *simd.get("found", ()))]


def _numpy_config() -> dict[str, Any]:
    config: Any = numpy.show_config(mode="dicts")
    return dict(config or {})


def _blas() -> dict[str, Any]:
    return dict(_numpy_config().get("Build Dependencies", {}).get("blas", {}))


def _processors() -> str:
    total = os.cpu_count() or 0
    if hasattr(os, "sched_getaffinity"):
        return f"{total}, of which {len(os.sched_getaffinity(0))} may be used here"
    return str(total) if total else UNKNOWN


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN
    text = f"{total / 2**30:.1f} GiB"
    for line in _text_of("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            text += f", of which {int(line.split()[1]) / 2**20:.1f} GiB are available"
    return text


def _environment(names: tuple[str, ...] | list[str]) -> str:
    return " ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ) or "none"
