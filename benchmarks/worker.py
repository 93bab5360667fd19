"""One side of a comparison in its own process: it prepares works and times them when the harness asks.

Each side has a process to itself, so that neither pays for the other's threads, heap or garbage collector.
Requests and answers are lines of JSON on the standard streams.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.works import Prepared, Unavailable

ROOT = Path(__file__).resolve().parent.parent
# XLA, which JAX runs on, makes as many threads as NPROC says.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "WAYFARE_NUM_THREADS", "NPROC")


class BenchmarkError(RuntimeError):
    """A side could not be measured; the message says which, on what work, and why."""


class Skipped(BenchmarkError):
    """A side has no such feature; the message says which feature."""


def resolve(work: str) -> Callable[..., Any]:
    """The function that `work` names, such as "chain.small_ops" in benchmarks/works/chain.py."""
    module, _, function = work.partition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"benchmarks.works.{module}"), function)
    return found


class Worker:
    """A running side, as the harness sees it; `python` and `arguments` are for a library that needs its own."""

    def __init__(
        self,
        module: str,
        threads: int,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        arguments: Sequence[str] = (),
    ) -> None:
        self.module = module
        self._work = "starting"
        # BLAS libraries read their thread count once, when they are loaded.
        limits = {name: str(threads) for name in THREAD_VARIABLES}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", module, str(threads), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, work: str, **parameters: Any) -> None:
        """Make `work` the one that `time` runs, and run it twice to warm up."""
        self._work = work
        self._ask(command="prepare", work=work, parameters=parameters)

    def time(self, number: int) -> float:
        """Seconds for one step, averaged over `number` of them."""
        return float(self._ask(command="time", number=number))

    def call(self, work: str, **parameters: Any) -> Any:
        """The answer of a function that measures by itself, called with the module as its first argument."""
        self._work = work
        return self._ask(command="call", work=work, parameters=parameters)

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise BenchmarkError(f"{self.module} died with status {status} in the work {self._work}.")
        answer = json.loads(line)
        if "unavailable" in answer:
            raise Skipped(answer["unavailable"])
        if "error" in answer:
            raise BenchmarkError(f"{self.module} failed in the work {self._work}:\n{answer['error']}")
        return answer["value"]


def load(name: str, threads: int) -> Any:
    """Import a side and give it its threads."""
    module = importlib.import_module(name)
    if hasattr(module, "set_num_threads"):
        module.set_num_threads(threads)
    return module


def serve(name: str, threads: int) -> None:
    """Answer requests until the harness closes the stream."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What a work prints must not be taken for an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module: Any = None
    prepared: Prepared | None = None
    for line in sys.stdin:
        request = json.loads(line)
        value: Any = None
        try:
            if module is None:
                module = load(name, threads)
            match request["command"]:
                case "prepare":
                    prepared = None  # an old work's memory and threads are not to be there while the new one is made
                    prepared = resolve(request["work"])(module, **request["parameters"])
                    prepared.step()
                    prepared.step()
                case "time":
                    assert prepared is not None
                    value = time_steps(prepared, request["number"])
                case "call":
                    value = resolve(request["work"])(module, **request["parameters"])
            answer = {"value": value}
        except Unavailable as reason:
            answer = {"unavailable": str(reason)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def time_steps(prepared: Prepared, number: int) -> float:
    """Mean seconds of `number` steps until the last is done, with the garbage collector running as in real use."""
    step = prepared.step
    started = perf_counter()
    for _ in range(number):
        step()
    prepared.finish()
    return (perf_counter() - started) / number


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
