"""Runs tests with the native module under AddressSanitizer (gcc, Linux): `python tools/test_asan.py tests/autograd`.

Python itself leaks at exit by design, so leaks are not reported. Exits with 1 on the first error of memory.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[1]


def main(tests: list[str]) -> int:
    """Build the module in a folder of its own, and run the tests with it."""
    # The sanitizer must know the exceptions of C++, which greenlets throw.
    sanitizer, cpp = (
        subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()
        for library in ("libasan.so", "libstdc++.so")
    )
    if not os.path.isabs(sanitizer):
        print("gcc has no AddressSanitizer here: nothing was run.")
        return 0
    version = importlib.util.spec_from_file_location("version", ROOT / "wayfare/core/version.py")
    assert version is not None and version.loader is not None
    module = importlib.util.module_from_spec(version)
    version.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        # No marks on the stack: greenlets copy it as a whole.
        command = [
            "gcc", "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address", "--param=asan-stack=0",
            "-ffp-contract=off", "-fPIC",
            "-shared", f'-DWAYFARE_VERSION="{module.__version__}"', f"-I{sysconfig.get_path('include')}",
            f"-I{numpy.get_include()}", str(ROOT / "wayfare/native/native.c"), "-o", str(made),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        # Python's own allocator would hide what is freed too early.
        settings = {"LD_PRELOAD": f"{sanitizer} {cpp}", "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
                    "WAYFARE_NATIVE": str(made)}  # fmt: skip
        runs = [sys.executable, "-m", "pytest", "-q", "-x", "--capture=sys", "-p", "no:cacheprovider", "-m", "not long",
                *tests]  # fmt: skip
        return subprocess.run(runs, cwd=ROOT, env={**os.environ, **settings}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
