"""One rank of the suite `many`: a work of either library on several processes; rank 0 prints what it measured.

Wayfare's ranks are started by `wayfare launch`, PyTorch's as its own launcher does, with Gloo.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

from benchmarks.worker import ROOT, THREAD_VARIABLES, BenchmarkError

SECONDS = 120


# -- starting ranks


def measured(module: str, ranks: int, work: str, **parameters: Any) -> dict[str, Any]:
    """What rank 0 measured."""
    arguments = [module, work, json.dumps(parameters)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONPATH": str(ROOT)}
    if module == "torch":
        lines = [[sys.executable, "-m", "benchmarks.ranks", *arguments]] * ranks
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environments = [{**environment, **place, "RANK": str(rank)} for rank in range(ranks)]
    else:
        from wayfare.distributed import launch

        lines = [launch.command(ranks, [str(ROOT / "benchmarks" / "ranks.py"), *arguments])]
        environments = [environment]
    processes = [subprocess.Popen(line, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for line, env in zip(lines, environments, strict=True)]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{work} on {ranks} ranks of {module} took more than {SECONDS} s") from None
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode:
            raise BenchmarkError(f"{work} on {ranks} ranks of {module} failed:\n{errors[-2000:]}")
    found: dict[str, Any] = json.loads(said[0][0].strip().splitlines()[-1])
    return found


# -- the works: each gives what rank 0 measured


def all_reduce(m: Any, dist: Any, sizes: list[int], rounds: int) -> dict[str, Any]:
    """Seconds of one all-reduce of so many bytes, in the best of several rounds."""
    found = {}
    for size in sizes:
        t = m.ones(size // 4)
        number = max(1, min(50, 2_000_000 // size))

        def several(t: Any = t, number: int = number) -> None:
            for _ in range(number):
                dist.all_reduce(t)

        found[str(size)] = _best(dist, several, rounds, number)
    return {"seconds": found}


def step(m: Any, dist: Any, model: str, rounds: int) -> dict[str, Any]:
    """Seconds of a training step with all ranks in step, without synchronising, and of the all-reduce alone."""
    net, batch, count = MODELS[model](m, dist.get_rank())
    wrapped = m.nn.parallel.DistributedDataParallel(net) if dist.get_world_size() > 1 else net
    optimizer = m.optim.SGD(net.parameters(), lr=1e-3)

    def run(synchronised: bool = True) -> None:
        optimizer.zero_grad()
        if synchronised or wrapped is net:
            wrapped(*batch).backward()
        else:
            with wrapped.no_sync():
                wrapped(*batch).backward()
        optimizer.step()

    for _ in range(5):
        run()
    began = process_time()
    found = {"step": _best(dist, run, rounds), "examples": count}
    found["cpu"] = (process_time() - began) / rounds
    if dist.get_world_size() > 1:
        found["alone"] = _best(dist, lambda: run(False), rounds)
        flat = m.ones(sum(p.numel() for p in net.parameters()))
        found["communication"] = _best(dist, lambda: dist.all_reduce(flat), rounds)
    return found


def on_a_network(m: Any, dist: Any, model: str, rounds: int, bandwidth: float) -> dict[str, Any]:
    """The same with a network that takes its time, and no processor: memory that ranks share needs one to be moved."""
    from wayfare.distributed.engine import Request
    from wayfare.distributed.mpi import MPIEngine

    class Network(MPIEngine):
        """Holds results back until they could have arrived, one transfer after the other."""

        free_at = 0.0

        def all_reduce(self, source: Any, out: Any, op: Any) -> Any:
            request = super().all_reduce(source, out, op)
            arrives = Network.free_at = max(perf_counter(), Network.free_at) + source.nbytes / bandwidth
            return Request(lambda: perf_counter() >= arrives and request.test())

        def split(self, ranks: Any) -> Any:
            made: Any = super().split(ranks)
            made.__class__ = Network
            return made

    dist.destroy_process_group()
    dist.adopt_engine(Network())
    return step(m, dist, model, rounds)


def _best(dist: Any, work: Callable[[], Any], rounds: int, number: int = 1) -> float:
    work()
    best = float("inf")
    for _ in range(rounds):
        dist.barrier()
        began = perf_counter()
        work()
        best = min(best, (perf_counter() - began) / number)
    return best


# -- models, each with one batch of its own for every rank


def mlp(m: Any, rank: int) -> tuple[Any, Any, int]:
    m.manual_seed(0)
    nn = m.nn
    layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    class Loss(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any, y: Any) -> Any:
            return nn.functional.cross_entropy(self.layers(x), y)

    m.manual_seed(rank + 1)
    return Loss(), (m.randn(512, 784), m.randint(0, 10, (512,))), 512


def trees(m: Any, rank: int) -> tuple[Any, Any, int]:
    import random

    m.manual_seed(0)
    nn, hidden, words = m.nn, 128, 500

    class Tree(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, hidden)
            self.cell, self.head = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 5)

        def state(self, tree: Any) -> Any:
            if isinstance(tree, int):
                return self.embed(m.tensor(tree))
            return self.cell(m.cat([self.state(tree[0]), self.state(tree[1])])).tanh()

        def forward(self, tree: Any, label: Any) -> Any:
            return nn.functional.cross_entropy(self.head(self.state(tree)), label)

    class Batch(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tree = Tree()

        def forward(self, examples: Any, labels: Any) -> Any:
            run = getattr(m, "map", None)
            losses = run(self.tree, examples, labels) if run else list(map(self.tree, examples, labels))
            return m.stack(losses).mean()

    numbers = random.Random(rank)

    def grown(leaves: int) -> Any:
        if leaves == 1:
            return numbers.randrange(words)
        left = numbers.randrange(1, leaves)
        return grown(left), grown(leaves - left)

    # The same sizes on every rank: what is measured here is communication, not balance.
    return Batch(), ([grown(8 + 3 * i) for i in range(16)], [m.tensor(i % 5) for i in range(16)]), 16


def transformer(m: Any, rank: int) -> tuple[Any, Any, int]:
    m.manual_seed(0)
    nn = m.nn
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    class Loss(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Any) -> Any:
            return (self.layers(x) ** 2).mean()

    m.manual_seed(rank + 1)
    return Loss(), (m.randn(8, 128, 256),), 8


MODELS = {"mlp": mlp, "trees": trees, "transformer": transformer}
WORKS: dict[str, Any] = {"all_reduce": all_reduce, "step": step, "on_a_network": on_a_network}


def main() -> None:
    """Run as one rank."""
    module, work, parameters = sys.argv[1:4]
    m = importlib.import_module(module)
    dist = importlib.import_module(f"{module}.distributed")
    m.set_num_threads(1)
    dist.init_process_group("gloo" if module == "torch" else "mpi")
    found = WORKS[work](m, dist, **json.loads(parameters))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
