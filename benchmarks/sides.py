"""The sides of the suites `compile` and `gpu`: each library in each of its ways to run a training step."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, Skipped
from benchmarks.worker import ROOT, Worker

WAYFARE, PYTORCH = "wayfare", "torch"


@dataclass(frozen=True)
class Side:
    """A library and how it runs a step; `name` heads its column."""

    name: str
    module: str
    mode: str

    def worker(self, options: Options, environment: Mapping[str, str] | None = None) -> Worker:
        """A process for this side; Skipped if its library is not there."""
        module = {WAYFARE: options.subject, PYTORCH: options.peer}.get(self.module, self.module)
        sys.path.insert(0, str(ROOT))
        try:
            if importlib.util.find_spec(module) is None:
                raise Skipped(f"{module} cannot be imported.")
        finally:
            sys.path.remove(str(ROOT))
        return Worker(module, options.threads, environment, patience=options.patience)

    def alone(
        self, options: Options, work: str, folder: Path, environment: Mapping[str, str] | None = None, **parameters: Any
    ) -> Any:
        """The answer of `work` from a fresh process that keeps what it compiles in `folder`."""
        names = ("WAYFARE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")
        caches = {name: str(folder / name.lower()) for name in names}
        for cache in caches.values():
            os.makedirs(cache, exist_ok=True)
        with self.worker(options, {**caches, **(environment or {})}) as worker:
            return worker.call(work, mode=self.mode, **parameters)


TORCH = Side("PyTorch eager", PYTORCH, "eager")
TORCH_FUSED = Side("PyTorch fused Adam", PYTORCH, "fused Adam")
TORCH_COMPILE = Side("torch. compile", PYTORCH, "compiled")
TORCH_GRAPHS = Side("reduce- overhead", PYTORCH, "reduce-overhead")
TORCH_CAPTURABLE = Side("reduce- overhead, capturable", PYTORCH, "reduce-overhead, capturable")
JAX = Side("JAX jit", "jax", "jit")
JAX_WAITED = Side("JAX waited for", "jax", "waited for")
JAX_REWRITTEN = Side("JAX rewritten", "jax", "rewritten")
EAGER = Side("Wayfare eager", WAYFARE, "eager")
COMPILED = Side("Wayfare compiled", WAYFARE, "compiled")
UNCHECKED = Side("unchecked", WAYFARE, "unchecked")

COLUMNS = [TORCH, TORCH_FUSED, TORCH_COMPILE, JAX, JAX_WAITED, EAGER, COMPILED]
PEERS = [TORCH, TORCH_FUSED, TORCH_COMPILE, JAX, JAX_WAITED]
