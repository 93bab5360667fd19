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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.works import CPU, Prepared, Unavailable, nothing, resolve
from benchmarks.works.devices import release, synchronizer

ROOT = Path(__file__).resolve().parent.parent
# XLA, which JAX runs on, makes as many threads as NPROC says.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "WAYFARE_NUM_THREADS", "NPROC")


class BenchmarkError(RuntimeError):
    """A side could not be measured; the message says which, on what work, and why."""


class Skipped(BenchmarkError):
    """A side has no such feature; the message says which feature."""


class Worker:
    """A running side, as the harness sees it; `python` and `arguments` are for a library that needs its own.

    With `patience`, a side that does not answer within so many seconds is ended: a kernel on a device may never end.
    """

    def __init__(
        self,
        module: str,
        threads: int,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        arguments: Sequence[str] = (),
        patience: float | None = None,
    ) -> None:
        self.module = module
        self.patience = patience
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

    def prepare(self, work: str, **parameters: Any) -> list[str]:
        """Make `work` the one that `time` runs, and run it twice to warm up; returns what the library warned of."""
        self._work = work
        return list(self._ask(command="prepare", work=work, parameters=parameters))

    def time(self, number: int) -> float:
        """Seconds for one step, averaged over `number` of them."""
        return float(self._ask(command="time", number=number))

    def save_results(self, path: Path) -> None:
        """Write the results of the work that `time` runs to a file of arrays."""
        self._ask(command="results", path=str(path))

    def release(self) -> None:
        """Drop the work that `time` runs, and give the memory of its device back."""
        self._ask(command="release")

    def call(self, work: str, **parameters: Any) -> Any:
        """The answer of a function that measures by itself, called with the module as its first argument."""
        self._work = work
        return self._ask(command="call", work=work, parameters=parameters)

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:  # it has died with a request unread
            pass
        try:
            self._process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        ended = Event()
        watch = Timer(self.patience, self._end, [ended]) if self.patience else None
        try:
            if watch is not None:
                watch.start()
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            if watch is not None:
                watch.cancel()
        if not line:
            status = self._process.wait()
            if ended.is_set():
                raise BenchmarkError(f"{self.module} gave no answer for {self.patience:g} s in the work {self._work}.")
            raise BenchmarkError(f"{self.module} died with status {status} in the work {self._work}.")
        answer = json.loads(line)
        if "unavailable" in answer:
            raise Skipped(answer["unavailable"])
        if "error" in answer:
            raise BenchmarkError(f"{self.module} failed in the work {self._work}:\n{answer['error']}")
        return answer["value"]


    def _end(self, ended: Event) -> None:
        ended.set()
        self._process.kill()


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
    wait: Callable[[], object] = nothing
    for line in sys.stdin:
        request = json.loads(line)
        value: Any = None
        try:
            if module is None:
                module = load(name, threads)
            match request["command"]:
                case "prepare":
                    prepared = None  # an old work's memory and threads are not to be there while the new one is made
                    wait = synchronizer(module, request["parameters"].get("device", CPU))
                    with warned() as value:
                        prepared = resolve(request["work"])(module, **request["parameters"])
                        prepared.step()
                        prepared.step()
                        prepared.finish()
                        wait()
                case "time":
                    assert prepared is not None
                    value = time_steps(prepared, request["number"], wait)
                case "results":
                    assert prepared is not None
                    np.savez(request["path"], *prepared.results())
                case "release":
                    prepared, wait = None, nothing
                    release(module)
                case "call":
                    value = resolve(request["work"])(module, **request["parameters"])
            answer = {"value": value}
        except Unavailable as reason:
            answer = {"unavailable": str(reason)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@contextmanager
def warned() -> Iterator[list[str]]:
    """The texts of warnings in the block, which are shown as ever."""
    texts: list[str] = []
    show = warnings.showwarning

    def showing(message: Warning | str, *rest: Any) -> None:
        texts.append(str(message))
        show(message, *rest)

    with warnings.catch_warnings():
        warnings.showwarning = showing  # type: ignore[assignment]
        yield texts


def time_steps(prepared: Prepared, number: int, wait: Callable[[], object] = nothing) -> float:
    """Mean seconds of `number` steps until the last is done, with the garbage collector running as in real use.

    `wait` waits for the device. It has nothing to do at the start, as preparing and every round end with it.
    """
    step = prepared.step
    started = perf_counter()
    for _ in range(number):
        step()
    prepared.finish()
    wait()
    return (perf_counter() - started) / number


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
