"""Runs tests so that a crash of one leaves the others: used by `tools/gpu_check.py`.

Pytest runs in a process of its own, with this file as its plugin. The plugin writes a line when a test begins and one
when it ends. If the process dies, hangs, or a CUDA error makes its device useless, the test that was running gets the
blame, and a new process goes on with the tests that are left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = "GPU_CHECK_RECORD"  # names the file of lines, for the plugin
SHARE = "GPU_CHECK_SHARE"  # "2/8": this process runs the third of eight shares of the tests
MOST_STARTS = 40
ERROR_LINES = 6
MOST_TEXT = 6000  # characters of a traceback
# After one of these every further call of the process fails: the tests that follow need a new one.
BROKEN_DEVICE = re.compile(
    r"illegal memory access|illegal address|unspecified launch failure|device-side assert|misaligned address"
    r"|CUDA_ERROR_(ILLEGAL|LAUNCH|MISALIGNED|ASSERT|ECC|HARDWARE)|cudaError(Illegal|Launch|Misaligned|Assert)"
)
# Everything pytest needs to know, so that plugins which pyproject.toml has settings for may be missing.
SETTINGS = """\
[pytest]
pythonpath = .
addopts = --import-mode=importlib
filterwarnings = ignore::RuntimeWarning:wayfare.*
markers =
    gpu: needs a CUDA device
    long: takes long
"""


# -- the plugin --------------------------------------------------------------------------------------------------------


class Recording:
    """Writes what happens to each test as a line of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session: Any = None

    def write(self, **entry: Any) -> None:
        """Add a line; it is in the file when this returns, whatever happens to the process next."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_collection_finish(self, session: Any) -> None:
        """Leave out the tests that have been run by an earlier process."""
        self.session = session
        share, workers = map(int, os.environ.get(SHARE, "0/1").split("/"))
        found = len(session.items)
        session.items[:] = session.items[share::workers]
        done = set(outcomes(lines(self.path)))
        self.write(collected=len(session.items), found=found)
        session.items[:] = [item for item in session.items if item.nodeid not in done]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(begins=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            text = report.longreprtext
            if BROKEN_DEVICE.search(text) and self.session is not None:
                self.session.shouldstop = "a CUDA error has made the device useless in this process"
            told = {"error": first_lines(text), "text": text[-MOST_TEXT:]}
            self.write(test=report.nodeid, outcome="failed", phase=report.when, **told)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "expected")
            self.write(test=report.nodeid, outcome="skipped", error=reason)
        elif report.when == "call":
            self.write(test=report.nodeid, outcome="passed", seconds=round(report.duration, 3))

    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        if not session.shouldstop and int(exitstatus) in (0, 1, 5):
            self.write(finished=int(exitstatus))


def pytest_configure(config: Any) -> None:
    """Called by pytest, which was started with this file as a plugin."""
    if RECORD in os.environ:
        config.pluginmanager.register(Recording(Path(os.environ[RECORD])), "gpu-check")


def first_lines(text: str) -> str:
    """The lines of an error that say what is wrong; the last ones where pytest marks none."""
    found = text.splitlines()
    marked = [line for line in found if line.startswith("E ")]
    return "\n".join((marked or found[-ERROR_LINES:])[:ERROR_LINES])


# -- the runner --------------------------------------------------------------------------------------------------------


@dataclass
class Tests:
    """What came of the tests: how each that was run ended, errors of those that failed, and what stopped it all."""

    outcomes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    collected: int = 0
    trouble: str = ""

    @property
    def failed(self) -> list[str]:
        """Tests that failed, crashed or hung."""
        return [test for test, outcome in self.outcomes.items() if outcome not in ("passed", "skipped")]

    @property
    def ok(self) -> bool:
        """Whether there were tests, and all were run and passed or were skipped."""
        return bool(self.outcomes) and not self.failed and not self.trouble and len(self.outcomes) >= self.collected

    def __add__(self, other: Tests) -> Tests:
        """What came of both."""
        trouble = "\n".join(filter(None, [self.trouble, other.trouble]))
        return Tests({**self.outcomes, **other.outcomes}, {**self.errors, **other.errors},
                     self.collected + other.collected, trouble)  # fmt: skip

    def summary(self) -> str:
        """One line with how many tests ended how."""
        counts = Counter(self.outcomes.values())
        told = [f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "crashed", "hung", "skipped")]
        missing = self.collected - len(self.outcomes)
        return ", ".join(told) + (f", {missing} not run" if missing > 0 else "")

    def markdown(self) -> str:
        """The summary, and the first lines of every error."""
        parts = [f"# Tests\n\n{self.summary()}\n"]
        if self.trouble:
            parts.append(f"{self.trouble}\n")
        for test in self.failed:
            parts.append(f"## {test}: {self.outcomes[test]}\n\n```\n{self.errors.get(test, '')}\n```\n")
        reasons = Counter(self.errors.get(test, "") for test, outcome in self.outcomes.items() if outcome == "skipped")
        parts += [f"- skipped {count} times: {reason}\n" for reason, count in reasons.most_common(20)]
        return "\n".join(parts)


def run_shares(workers: int, arguments: list[str], folder: Path, seconds: float, **given: Any) -> Tests:
    """Run the tests in so many processes at once, each with its share; their files are `tests-0.jsonl`, and so on."""

    def share(number: int) -> Tests:
        variables = {**(given.get("variables") or {}), SHARE: f"{number}/{workers}"}
        record, log = folder / f"tests-{number}.jsonl", folder / f"tests-{number}.log"
        return run_tests(arguments, record, log, seconds, **{**given, "variables": variables})

    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(share, range(workers)), Tests())


def run_tests(
    arguments: list[str],
    record: Path,
    log: Path,
    seconds: float,
    each: float = 120.0,
    path: str = "",
    variables: Mapping[str, str] | None = None,
) -> Tests:
    """Run pytest with these arguments for at most so many seconds, no test longer than `each`.

    `record` is the file of lines; what pytest prints goes to `log`. `path` is put before PYTHONPATH, and
    `variables` into the environment.
    """
    record.unlink(missing_ok=True)
    record.touch()
    settings = record.with_suffix(".ini")
    settings.write_text(SETTINGS)
    ends = time.monotonic() + seconds
    trouble = ""
    paths = [str(Path(__file__).parent), str(ROOT), path, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **(variables or {}), RECORD: str(record.resolve())}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-p", "gpu_tests", "-p", "no:cacheprovider", "-q",
               "-c", str(settings), "--rootdir", str(ROOT), *arguments]  # fmt: skip
    with open(log, "w", encoding="utf-8") as printed:
        for _ in range(MOST_STARTS):
            before = len(lines(record))
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT,
                                       start_new_session=True)  # fmt: skip
            why = _watch(process, record, ends, each)
            found = lines(record)
            if any("finished" in entry for entry in found[before:]):
                break
            running = _running(found)
            if running is not None and why != "time":
                outcome = "hung" if why == "hung" else "crashed"
                with open(record, "a", encoding="utf-8") as file:
                    error = f"{_status(process.returncode, why, each)}\n{_tail(log)}"
                    file.write(json.dumps({"test": running, "outcome": outcome, "error": error}) + "\n")
            if why == "time":
                trouble = f"The {seconds:g} s for tests were used up."
                break
            if not any("begins" in entry for entry in found[before:]):
                trouble = f"Pytest ran no test ({_status(process.returncode, why, each)}):\n{_tail(log)}"
                break
        else:
            trouble = f"Pytest was started {MOST_STARTS} times and has not got through."
    settings.unlink(missing_ok=True)
    found = lines(record)
    collected = max((entry["collected"] for entry in found if "collected" in entry), default=0)
    errors = {entry["test"]: entry["error"] for entry in found if entry.get("error")}
    if not any(entry.get("found") for entry in found) and not trouble:
        trouble = f"No test was found for: {' '.join(arguments)}."
    return Tests(outcomes(found), errors, collected, trouble)


def lines(record: Path) -> list[dict[str, Any]]:
    """What has been written so far; half a line, of a process that was ended, does not count."""
    found = []
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def outcomes(found: list[dict[str, Any]]) -> dict[str, str]:
    """How each test ended; one that passed and failed in its teardown has failed."""
    ended: dict[str, str] = {}
    for entry in found:
        if "test" in entry and ended.get(entry["test"]) not in ("failed", "crashed", "hung"):
            ended[entry["test"]] = entry["outcome"]
    return ended


def _running(found: list[dict[str, Any]]) -> str | None:
    """The test that had begun last and has no outcome."""
    begun = [entry["begins"] for entry in found if "begins" in entry]
    return begun[-1] if begun and begun[-1] not in outcomes(found) else None


def _watch(process: subprocess.Popen[bytes], record: Path, ends: float, each: float) -> str:
    """Wait for the end of the process; "hung" or "time" if it had to be ended, and nothing otherwise."""
    size, changed = -1, time.monotonic()
    while process.poll() is None:
        now = time.monotonic()
        if record.stat().st_size != size:
            size, changed = record.stat().st_size, now
        why = "time" if now > ends else "hung" if now - changed > each else ""
        if why:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return why
        time.sleep(0.1)
    return ""


def _status(status: int, why: str, each: float) -> str:
    if why == "hung":
        return f"no end within {each:g} s"
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _tail(log: Path, count: int = 15) -> str:
    """The end of what pytest printed; of a crash where it happened."""
    text = log.read_text(encoding="utf-8", errors="replace")
    before, crash, after = text.rpartition("Fatal Python error")
    return "\n".join((crash + after).splitlines()[:count] if before and crash else text.splitlines()[-count:])
