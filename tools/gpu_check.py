"""Checks and measures everything on a machine with a GPU in one run: `python tools/gpu_check.py --out DIR`.

It shows the machine, builds the native module, runs the GPU tests and the suite `python -m benchmarks gpu`, and leaves
a folder with what came of it. Each part runs in a process of its own within a time limit: one that crashes or hangs
does not stop the others, and what it had found until then is kept. Nothing is installed, no network is needed; packages
that the machine lacks can be brought along as a folder of wheels (`--wheels`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path

from gpu_tests import ROOT, run_shares

PARTS = ("machine", "build", "tests", "suite")
TESTS = "tests/gpu"
REAL_DEVICE = {"WAYFARE_TEST_GPU": "1"}  # without it these tests take a stand-in for CuPy
# What Wayfare, its tests and its benchmarks import, beyond the standard library.
NEEDED = ("numpy", "scipy", "greenlet", "llvmlite", "rich", "pytest", "hypothesis", "cupy", "torch")
FILES = """\
summary.md   what came of each part, failed tests, the table of figures
machine.txt  card, driver, versions
tests-N.jsonl  a line for the beginning and the end of every test that worker N ran
tests-N.log  what its pytest printed
suite.log    what the suite printed
figures.json every round of every row
table.md     the figures as a table for docs/benchmarks.md
"""
VERSIONS = """\
import importlib.metadata, os, platform
print("Python", platform.python_version(), platform.platform(), os.cpu_count(), "cores")
for found in sorted(importlib.metadata.distributions(), key=lambda found: str(found.name).lower()):
    if str(found.name).lower().startswith(("cupy", "torch", "triton", "numpy", "scipy", "llvmlite", "greenlet",
                                           "ml-dtypes", "ml_dtypes", "nvidia-c", "pytest", "rich", "hypothesis")):
        print(found.name, found.version)
"""
TORCH = """\
import torch
print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print("available:", torch.cuda.is_available(), names)
"""
CUPY = """\
import cupy
print("CuPy", cupy.__version__, "runtime", cupy.cuda.runtime.runtimeGetVersion(), "driver",
      cupy.cuda.runtime.driverGetVersion(), "2 + 2 =", float(cupy.full(2, 2.0).sum()))
"""
WAYFARE = """\
import wayfare as wf
print("Wayfare", wf.__version__, "CUDA available:", wf.cuda.is_available())
print("2 + 2 =", float(wf.full((2,), 2.0, device="DEVICE").sum()))
"""
# hatch_build.py compiles the module; hatchling, which it is a plugin of, need not be there.
BUILD = """\
import sys, types
sys.modules["hatchling.builders.hooks.plugin.interface"] = types.SimpleNamespace(BuildHookInterface=object)
import hatch_build
made = hatch_build.build()
print(made or "the native module could not be built: Wayfare runs without it, and small ops are slower")
sys.exit(made is None)
"""


class Check:
    """One run: its folder, its settings, and what has been said so far."""

    def __init__(self, given: argparse.Namespace, packages: Path) -> None:
        self.given = given
        self.out: Path = given.out
        self.packages = packages
        self.said: list[str] = []
        self.failed: list[str] = []

    def say(self, text: str) -> None:
        """Print, and keep for the summary, which is written anew each time: the run may be cut off."""
        print(text, flush=True)
        self.said.append(text)
        (self.out / "summary.md").write_text("\n".join(self.said) + "\n", encoding="utf-8")

    def process(self, command: list[str], log: Path, seconds: float) -> str:
        """Run a command with its output in `log`; what went wrong, or nothing."""
        paths = [str(ROOT), str(self.packages), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        with open(log, "a", encoding="utf-8") as printed:
            printed.flush()
            try:
                started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed,
                                           stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
            except OSError as error:
                return str(error)
            try:
                status = started.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
                return f"not done after {seconds:g} s"
        if status < 0:
            return f"ended by {signal.Signals(-status).name}"
        return f"ended with status {status}" if status else ""

    def snippet(self, code: str, log: Path, seconds: float) -> str:
        """Run some Python in a process of its own."""
        return self.process([sys.executable, "-X", "faulthandler", "-c", code], log, seconds)

    # -- parts

    def machine(self) -> None:
        """Which card, which driver, which versions; whether each library can use the card at all."""
        log = self.out / "machine.txt"
        query = "--query-gpu=name,driver_version,memory.total,memory.used,clocks.max.sm,power.limit"
        tries: dict[str, Callable[[], str]] = {
            "nvidia-smi": lambda: self.process(["nvidia-smi", query, "--format=csv"], log, 30),
            "commit": lambda: self.process(["git", "log", "-1", "--format=commit %H %cd"], log, 30),
            "versions": lambda: self.snippet(VERSIONS, log, 60),
            "PyTorch": lambda: self.snippet(TORCH, log, 120),
            "CuPy": lambda: self.snippet(CUPY, log, 120),
            "Wayfare": lambda: self.snippet(WAYFARE.replace("DEVICE", self.given.device), log, 120),
        }
        troubles = {name: trouble for name, run in tries.items() if (trouble := run())}
        self.say(f"```\n{log.read_text(encoding='utf-8').strip()}\n```")
        missing = [name for name in NEEDED if not self.importable(name)]
        if missing:
            self.say(f"Missing packages: {', '.join(missing)}. Bring them along as wheels: --wheels DIR.")
        for name, trouble in troubles.items():
            self.say(f"- {name}: {trouble}")
        if "Wayfare" in troubles:
            self.failed.append("Wayfare cannot use the device")

    def importable(self, name: str) -> bool:
        """Whether a package is there, or among those brought along."""
        return importlib.util.find_spec(name) is not None or (self.packages / name).exists()

    def build(self) -> None:
        """The native module, which small ops need to be fast."""
        log = self.out / "machine.txt"
        trouble = self.snippet(BUILD, log, 180)
        self.say(f"native module: {trouble or 'built'}")

    def tests(self) -> None:
        """The GPU tests."""
        given = self.given
        variables = {} if given.device == "cpu" else REAL_DEVICE
        found = run_shares(given.workers, given.tests.split(), self.out, given.test_seconds, path=str(self.packages),
                           variables=variables)  # fmt: skip
        self.say(found.markdown())
        if not found.ok:
            self.failed.append(f"tests: {found.summary()}")

    def suite(self) -> None:
        """The benchmarks; of a run that is cut off, the rows that were done."""
        log, figures = self.out / "suite.log", self.out / "figures.json"
        figures.unlink(missing_ok=True)
        given = self.given
        command = [sys.executable, "-m", "benchmarks", "gpu", "--device", given.device]
        command += ["--json", str(figures.resolve())]
        seconds = given.suite_seconds or (240.0 if given.quick else 540.0)
        command += ["--quick"] * given.quick + ["--budget", f"{seconds:g}"] + ["--only", given.only] * bool(given.only)
        trouble = self.process(command, log, seconds + given.grace)
        if trouble:
            self.failed.append(f"suite: {trouble}")
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            self.say("\n".join([f"The suite: {trouble}. The end of its log:", "```", *tail, "```"]))
        if figures.exists():
            sys.path.insert(0, str(ROOT))
            table_of = importlib.import_module("benchmarks.gpu_table").markdown
            table = table_of(json.loads(figures.read_text(encoding="utf-8")))
            (self.out / "table.md").write_text(table, encoding="utf-8")
            self.say(table)


def unpack(wheels: Path | None, target: Path) -> None:
    """Wheels are zip files: unpacking one is all there is to do, and needs no pip."""
    for wheel in sorted(wheels.glob("*.whl")) if wheels is not None else []:
        with zipfile.ZipFile(wheel) as content:
            content.extractall(target)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, epilog=f"Files in the folder:\n{FILES}",
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = made.add_argument
    add("--out", type=Path, default=Path("gpu_check"), help="the folder for what is found (gpu_check)")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which parts (all)")
    add("--device", default="cuda", help="the device (cuda); with cpu the suite runs small")
    add("--quick", action="store_true", help="the suite as a quick look")
    add("--only", help="only the rows of the suite whose name contains this")
    add("--tests", default=TESTS, help=f"what pytest is given ({TESTS})")
    add("--workers", type=int, default=4, help="processes that share the tests and the device (4)")
    add("--test-seconds", type=float, default=300.0, help="for all tests (300)")
    add("--suite-seconds", type=float, help="for the suite (its own limit: 540, with --quick 240)")
    add("--grace", type=float, default=120.0, help="seconds that the suite may need beyond its limit (120)")
    add("--wheels", type=Path, help="a folder of wheels for packages that are missing here")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the parts and write the summary; 0 if nothing failed."""
    given = parser().parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        packages = Path(folder)
        unpack(given.wheels, packages)
        check = Check(given, packages)
        (given.out / "machine.txt").unlink(missing_ok=True)
        (given.out / "suite.log").unlink(missing_ok=True)
        for name in given.parts:
            started = time.monotonic()
            check.say(f"\n# {name}\n")
            try:
                getattr(check, name)()
            except Exception:
                check.failed.append(f"{name}: an error of this script")
                check.say(f"```\n{traceback.format_exc()}```")
            check.say(f"\n({name}: {time.monotonic() - started:.0f} s)")
        check.say("\n# result\n\n" + ("\n".join(f"- {reason}" for reason in check.failed) or "Nothing failed."))
    return bool(check.failed)


if __name__ == "__main__":
    sys.exit(main())
