"""Builds the native module (wayfare/native) into a wheel or an editable installation, where that can be done.

Without a C compiler, or without Python's headers, the wheel is a pure one, and the package does the same in Python.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


def build(root: Path = ROOT, extra: tuple[str, ...] = ()) -> Path | None:
    """Compile the native module into wayfare/core; its path, or None where that cannot be done."""
    try:
        import numpy
    except ImportError:
        return None
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if sys.platform == "win32" or not suffix or sys.implementation.name != "cpython":
        return None
    version = re.search(r'__version__ = "(.+)"', (root / "wayfare/core/version.py").read_text())
    made = root / "wayfare" / "core" / f"_native{suffix}"
    unfinished = made.with_name(f"{made.name}.{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    # No contraction: a * b + c must have the same bits as in NumPy.
    options = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-w", "-DNDEBUG"]
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    command = [
        *compiler, *options, *link, *extra, f'-DWAYFARE_VERSION="{version[1] if version else ""}"',
        f"-I{sysconfig.get_path('include')}", f"-I{numpy.get_include()}",
        str(root / "wayfare/native/native.c"), "-o", str(unfinished),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"wayfare: the native module is left out, because it does not compile here:\n{done.stderr[-2000:]}")
            return None
        os.replace(unfinished, made)  # a process may have the old one open
    except OSError:
        return None
    finally:
        unfinished.unlink(missing_ok=True)
    return made


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc]
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the native module to a wheel; in an editable installation it lies beside the sources."""
        if self.target_name != "wheel":
            return
        made = build(Path(self.root))
        if made is not None and version != "editable":
            build_data["force_include"][str(made)] = f"wayfare/core/{made.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
