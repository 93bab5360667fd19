"""The suite `many`: several processes train one model; PyTorch's DistributedDataParallel with Gloo beside it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np

from benchmarks import corpora
from benchmarks.harness import Measurement, Options, Report
from benchmarks.ranks import measured

SUMMARY = "several processes: throughput of 2 ranks, all-reduce, overlap, ranks that wait, workers of wf.map"

MILLI = 1e3
KB, MB = 1024, 1024 * 1024
SIZES = (KB, 32 * KB, MB, 10 * MB, 100 * MB)
# 2 ranks do at least 1.8 times the work of one.
LONGER_STEP = 2 / 1.8


def run(options: Options) -> Report:
    """Measure every part that the options want."""
    report = Report("many", options)
    report.begin()
    for name, part in PARTS.items():
        if not options.wants(name):
            continue
        if part is not balance and find_spec("mpi4py") is None:
            report.skip(name, "ranks", 'mpi4py is missing: pip install "wayfare[mpi]"')
            continue
        part(report)
    judged = [row for row in report.measurements if row.met is not None]
    report.note(f"\nwanted: {sum(row.met is True for row in judged)} of {len(judged)} rows met")
    report.note(f"Every rank has one thread. Best of {options.rounds} rounds in each of {_runs(options)} runs, the "
                "sides taking turns. Other work on the machine makes ranks wait for each other; processor time does "
                "not see that.")  # fmt: skip
    return report


def _runs(options: Options) -> int:
    return 1 if options.quick else 3


def _rounds(report: Report, ranks: int, work: str, **parameters: Any) -> list[list[dict[str, Any]]]:
    """What each side measured, in runs that take turns."""
    found: list[list[dict[str, Any]]] = [[] for _ in report.options.modules()]
    for _ in range(_runs(report.options)):
        for side, module in enumerate(report.options.modules()):
            found[side].append(measured(module, ranks, work, rounds=report.options.rounds, **parameters))
    return found


def throughput(report: Report) -> None:
    """The step of two ranks over that of one with the same batch for each: 1 is perfect."""
    rows = []
    for model in ("mlp", "trees"):
        one, two = (_rounds(report, ranks, "step", model=model) for ranks in (1, 2))
        for side, module in enumerate(report.options.modules()):
            longer = min(r["step"] for r in two[side]) / min(r["step"] for r in one[side])
            if side == 0:
                rows.append(Measurement("throughput", model, "×", [[longer]], LONGER_STEP, absolute=True))
            rate = [min(r["step"] for r in found[side]) * MILLI for found in (one, two)]
            busy = [min(r["cpu"] for r in found[side]) * MILLI for found in (one, two)]
            # Two processes that do not talk to each other still share memory and clock: the most that there can be.
            apart = min(r["alone"] for r in two[side]) * MILLI
            report.note(f"  {model}: {module}: one rank {rate[0]:.1f} ms a step, two ranks {rate[1]:.1f} ms: "
                        f"{2 / longer:.2f} times the throughput; two without sending {apart:.1f} ms: "
                        f"{2 * rate[0] / apart:.2f} times, of which {apart / rate[1]:.0%} are reached; processor time "
                        f"{busy[0]:.1f} and {busy[1]:.1f} ms: {2 * busy[0] / busy[1]:.2f} times")  # fmt: skip
    report.add("A step of 2 ranks over one of 1 rank, the same batch for each (2 / 1.8 = 1.11)", rows)


def reductions(report: Report) -> None:
    """All-reduce between two ranks."""
    found = _rounds(report, 2, "all_reduce", sizes=list(SIZES))
    rows = [
        Measurement("all-reduce", f"{size // KB:,} KB", "ms",
                    [[r["seconds"][str(size)] * MILLI for r in side] for side in found], 1.0)
        for size in SIZES
    ]  # fmt: skip
    report.add("All-reduce of float32 between 2 ranks", rows)


def overlap(report: Report) -> None:
    """How much of the communication is hidden behind the backward pass."""
    found = _rounds(report, 2, "step", model="transformer")
    for side, module in enumerate(report.options.modules()):
        step, alone, sent = (min(r[name] for r in found[side]) for name in ("step", "alone", "communication"))
        shown = max(0.0, step - alone)
        if side == 0:
            share = Measurement("overlap", "communication not hidden", "", [[shown / sent]], 0.3, absolute=True)
        report.note(f"  transformer: {module}: {step * MILLI:.1f} ms a step, {alone * MILLI:.1f} ms without sending, "
                    f"{sent * MILLI:.1f} ms sending alone: {1 - min(1, shown / sent):.0%} hidden")  # fmt: skip
    report.add("Communication that a step of the transformer waits for", [share])


def balance(report: Report) -> None:
    """Recorded nodes and processor seconds of each rank's share of every step, dealt by count and by cost."""
    import wayfare as wf

    wf.set_num_threads(1)
    rows = []
    for name, examples, cost, model in _workloads(report):
        for at in range(0, len(examples), BATCH):  # what is compiled or recorded once
            _seconds(model, examples[at : at + BATCH])
        nodes = [cost(example)[0] for example in examples]
        for ranks in (2, 4):
            found = {}
            for how in ("count", "cost"):
                steps = _dealt(examples, cost, ranks, how)
                work = [[sum([nodes[i] for i in share]) for share in step] for step in steps]
                seconds = [[_seconds(model, [examples[i] for i in share]) for share in step] for step in steps]
                found[how] = _waiting(work), _waiting(seconds)
            rows.append(Measurement("balance", f"{name}, {ranks} ranks", "%", [[100 * found["cost"][0]]], 5.0,
                                    absolute=True))  # fmt: skip
            report.note(f"  {name}, {ranks} ranks: waiting {found['count'][0]:.1%} by count and {found['cost'][0]:.1%} "
                        f"by cost, in recorded nodes; {found['count'][1]:.1%} and {found['cost'][1]:.1%} in processor "
                        "seconds, which other load disturbs")  # fmt: skip
    report.add("Waiting for the slowest rank with CostSampler, in recorded nodes, batches of 16", rows)


BATCH = 16


def _dealt(examples: list[Any], cost: Any, ranks: int, how: str) -> list[Any]:
    from wayfare.distributed import CostSampler
    from wayfare.utils.data import DistributedSampler

    if how == "cost":
        return CostSampler(examples, cost, ranks, 0, batch_size=BATCH).steps()
    parts = [list(DistributedSampler(examples, ranks, rank)) for rank in range(ranks)]
    return [[part[at : at + BATCH] for part in parts] for at in range(0, len(parts[0]), BATCH)]


def _waiting(loads: Any) -> float:
    """The fraction of time that ranks wait for the slowest, from the loads [step][rank]."""
    return float(1 - np.mean(loads, 1).sum() / np.max(loads, 1).sum())


def _seconds(model: Any, share: list[Any]) -> float:
    """Processor seconds of a share of one step, the best of several runs."""
    import wayfare as wf

    best = float("inf")
    for _ in range(5):
        began = process_time()
        wf.stack(wf.map(model, share, batch=True)).mean().backward()
        best = min(best, process_time() - began)
    return best


def _workloads(report: Report) -> list[tuple[str, list[Any], Any, Any]]:
    """(name, examples, cost, model of one example) for trees and for sequences."""
    import json

    import wayfare as wf
    from wayfare import nn
    from wayfare.distributed import RecordedCost

    count = 128 if report.options.quick else 512
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trees.json"
        report.note(f"  trees: {corpora.write(path, count)}")
        corpus = json.loads(path.read_text())
    trees = corpus["trees"]

    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(len(corpus["words"]), 64)
            self.cell = nn.Linear(128, 64)

        def forward(self, tree: Any) -> Any:
            return self.state(tree).square().mean()

        def state(self, tree: Any) -> Any:
            if len(tree) == 2:
                return self.embed(wf.tensor(tree[1]))
            return self.cell(wf.cat([self.state(tree[1]), self.state(tree[2])])).tanh()

    lengths = np.random.default_rng(0).integers(5, 100, count)
    sequences = [wf.randn(int(length), 32) for length in lengths]

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(32, 64)

        def forward(self, xs: Any) -> Any:
            h = wf.zeros(64)
            for x in xs:
                h = self.cell(x, h)
            return h.square().mean()

    tree, sequence = Tree(), Sequence()
    return [("trees", trees, RecordedCost(tree), tree), ("sequences", sequences, RecordedCost(sequence), sequence)]


PARTS: dict[str, Callable[[Report], None]] = {
    "throughput": throughput, "all-reduce": reductions, "overlap": overlap, "balance": balance,
}  # fmt: skip
