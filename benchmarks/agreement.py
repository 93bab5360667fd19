"""Do the sides of a comparison compute the same? Asked once for each work, before anybody is timed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import BenchmarkError, Sides

RELATIVE = 1e-4  # of each number
OF_LARGEST = 1e-5  # of the array's largest: what cancels to nearly nothing keeps the error of what it came from


def check(sides: Sides, work: str, **parameters: Any) -> None:
    """Let every side compute the results of `work` at full size, and raise BenchmarkError unless they are close."""
    with TemporaryDirectory() as folder:
        # Millions of numbers travel as files: lines of JSON would take longer than the whole suite.
        paths = [Path(folder) / f"{side}.npz" for side in range(len(sides.workers))]
        for worker, path in zip(sides.workers, paths, strict=True):
            worker.call("answers.save", of=work, path=str(path), parameters=parameters)
        answers = [_read(path) for path in paths]
    for worker, answer in zip(sides.workers[1:], answers[1:], strict=True):
        reason = difference(answers[0], answer)
        if reason is not None:
            mine = sides.workers[0].module
            raise BenchmarkError(f"{mine} and {worker.module} disagree in the work {work} {parameters}: {reason}.")


def difference(
    ours: list[np.ndarray], theirs: list[np.ndarray], relative: float = RELATIVE, of_largest: float = OF_LARGEST
) -> str | None:
    """What tells two lists of results apart beyond rounding; None if nothing does."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results against {len(theirs)}"
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our.shape != their.shape or our.dtype != their.dtype:
            return f"result {number} is {our.dtype}{list(our.shape)} against {their.dtype}{list(their.shape)}"
        largest = float(np.abs(their).max(initial=0.0))
        if not largest > 0:
            return f"result {number} is all zeros or has a NaN, which compares nothing"
        apart = np.abs(our - their)
        if not (apart <= relative * np.abs(their) + of_largest * largest).all():
            return f"result {number} differs by up to {float(apart.max()):.3g}, its largest number is {largest:.3g}"
    return None


def _read(path: Path) -> list[np.ndarray]:
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]
