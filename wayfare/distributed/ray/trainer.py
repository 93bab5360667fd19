"""`Trainer`: a data-parallel run of Ray Train whose workers are a process group."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wayfare as wf
from wayfare.core.errors import DistributedError
from wayfare.distributed.process_group import adopt_engine, destroy_process_group, get_rank, is_initialized
from wayfare.distributed.ray.engine import RayEngine, new_exchange

try:
    import ray.train
    from ray.train.backend import Backend, BackendConfig
except ImportError as error:
    raise DistributedError(f"wayfare.ray: Ray Train could not be loaded ({error})",
                           fix='Install it with: pip install "wayfare[ray]" (Ray 2.40 or later).'
                           ) from None  # fmt: skip


def _trainer() -> Any:
    """The trainer that belongs to the `ray.train.report` in use: the second version, where that is switched on."""
    try:
        from ray.train.v2._internal.constants import is_v2_enabled
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer as Second

        if is_v2_enabled():
            return Second
    except ImportError:
        pass  # before Ray 2.43
    from ray.train.data_parallel_trainer import DataParallelTrainer as First

    return First


_FILE = "state.safetensors"
# How often a run may lose workers and go on.
_MAX_FAILURES = 3


class _WayfareBackend(Backend):
    """Joins the workers of a run into a process group."""

    def on_training_start(self, worker_group: Any, backend_config: Any) -> None:
        """Every worker joins, before the user's function runs."""
        worker_group.execute(_join, new_exchange(), backend_config.timeout, backend_config.threads)

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Nothing to do: the actor ends with the workers."""


@dataclass
class WayfareConfig(BackendConfig):
    """How workers are joined: the time-out of calls in seconds, and the threads of each worker (None: all cores)."""

    timeout: float = 1800.0
    threads: int | None = 1

    @property
    def backend_cls(self) -> Any:
        """The class that joins them."""
        return _WayfareBackend


def _join(exchange: Any, timeout: float, threads: int | None) -> None:
    context = ray.train.get_context()
    if is_initialized():
        destroy_process_group()
    if threads is not None:
        wf.set_num_threads(threads)
    adopt_engine(RayEngine(exchange, context.get_world_rank(), context.get_world_size()), timeout)


class Trainer(_trainer()):  # type: ignore[misc]
    """Runs `train_fn` on the workers that `scaling_config` asks for; `fit()` returns Ray's `Result`.

    The workers are a process group: `DistributedDataParallel`, `CostSampler` and everything else in `wf.distributed`
    works as it does under MPI. Metrics and checkpoints go through `report`. A worker that is lost is replaced, up to
    three times unless `run_config` says otherwise: all workers begin `train_fn` anew, and `restore()` gives them what
    was reported last. All other arguments are those of Ray's `DataParallelTrainer`.
    """

    def __init__(
        self, train_fn: Callable[..., Any], scaling_config: Any = None, *, train_loop_config: Any = None,
        run_config: Any = None, backend_config: WayfareConfig | None = None, **more: Any,
    ) -> None:  # fmt: skip
        if run_config is None:
            run_config = ray.train.RunConfig()
        if run_config.failure_config is None or run_config.failure_config.max_failures == 0:
            run_config.failure_config = ray.train.FailureConfig(max_failures=_MAX_FAILURES)
        super().__init__(train_fn, train_loop_config=train_loop_config, scaling_config=scaling_config,
                         run_config=run_config, backend_config=backend_config or WayfareConfig(), **more)  # fmt: skip


def report(metrics: dict[str, Any], state: Any = None) -> None:
    """Report metrics to Ray, and with `state` a checkpoint: whatever `wf.save` takes, such as a dict of state dicts.

    Every rank calls it. The state of rank 0 is written, whole or not at all.
    """
    plain = {name: float(value) if isinstance(value, wf.Tensor) else value for name, value in metrics.items()}
    if state is None or get_rank() != 0:
        ray.train.report(plain)
        return
    folder = tempfile.mkdtemp(prefix="wayfare-")
    try:
        wf.save(state, Path(folder) / _FILE)
        ray.train.report(plain, checkpoint=ray.train.Checkpoint.from_directory(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restore() -> Any:
    """The state that was reported last, also by workers that were lost since; None at the beginning of a run."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return wf.load(Path(folder) / _FILE)
