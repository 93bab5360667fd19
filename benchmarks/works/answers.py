"""What a work computes, written to a file for the harness to compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.works import resolve


def save(m: Any, of: str, path: str, parameters: dict[str, Any]) -> int:
    """Write the results of the work `of` to `path`; returns how many arrays they are."""
    results = resolve(of)(m, **parameters).results()
    np.savez(path, *results)
    return len(results)
