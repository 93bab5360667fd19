"""The suite `eager`: the cost of an op, of a step, of a graph's growth, of an import, and of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import BenchmarkError, Measurement, Options, Report, Sides, interleave, sparkline
from benchmarks.worker import ROOT
from benchmarks.works import elementwise, memory

SUMMARY = "ops run as Python meets them: small ops, an MLP step, large arrays, scaling, import, memory"

MICRO = 1e6
MILLI = 1e3
MEGABYTE = 1024 * 1024
OPS_IN_CHAIN = 200


def run(options: Options) -> Report:
    """Measure every part the options want and print each as it is done."""
    report = Report("eager", options)
    report.begin()
    for name, part in PARTS.items():
        if options.wants(name):
            part(report)
    return report


def chains(report: Report) -> None:
    """The cost of an op whose arithmetic is next to nothing."""
    works = (
        ("mixed ops, forward + backward", "chain.small_ops", 0.42),
        ("mixed ops, forward under no_grad", "chain.small_ops_forward", None),
        ("matmul and tanh, forward + backward", "chain.small_products", None),
    )
    with Sides(report.options) as sides:
        rows = []
        for title, work, wanted in works:
            seconds = interleave(sides, work, report.options.rounds, ops=OPS_IN_CHAIN)
            rows.append(_row("chain", title, "µs", seconds, MICRO / OPS_IN_CHAIN, wanted))
    report.add(f"Chain of {OPS_IN_CHAIN} small ops (float32[8,8]), time per op", rows)


def tagger(report: Report) -> None:
    """Views and numbers so small that only what surrounds them costs."""
    with Sides(report.options) as sides:
        seconds = interleave(sides, "crf.tagger", report.options.rounds)
    rows = [_row("tagger", "forward + backward", "ms", seconds, MILLI, 1.0)]
    report.add("BiLSTM-CRF, three sentences of 12 words, score by score", rows)


def perceptron(report: Report) -> None:
    """A training step of ordinary size."""
    works = (
        ("loss written by hand", "mlp.by_hand", 1.2),
        ("loss by cross_entropy", "mlp.with_cross_entropy", None),
    )
    with Sides(report.options) as sides:
        rows = []
        for title, work, wanted in works:
            seconds = interleave(sides, work, report.options.rounds)
            rows.append(_row("mlp", title, "ms", seconds, MILLI, wanted))
    report.add("Training step of a 784-512-512-10 MLP, batch 256, SGD", rows)


def large(report: Report) -> None:
    """Kernels on arrays that do not fit a cache, and on some that do."""
    rounds = report.options.rounds
    with Sides(report.options) as sides:
        for count, unit, factor in ((100_000, "µs", MICRO), (4_000_000, "ms", MILLI)):
            rows = []
            for op in elementwise.OPS:
                seconds = interleave(sides, "elementwise.forward", rounds, op=op, count=count)
                rows.append(_row("large", op, unit, seconds, factor))
            seconds = interleave(sides, "elementwise.forward_and_backward", rounds, count=count)
            rows.append(_row("large", "8 ops, forward + backward", unit, seconds, factor))
            report.add(f"Elementwise work on {count:,} float32 numbers", rows)


def scaling(report: Report) -> None:
    """Time per node as graphs grow, which must stay about constant."""
    sizes = (1_000, 10_000, 100_000) if report.options.quick else (1_000, 10_000, 100_000, 1_000_000)
    titles = (("build, backward and free", ("build", "backward")), ("drop without backward", ("free",)))
    rows: dict[str, list[Measurement]] = {title: [] for title, _ in titles}
    for nodes in sizes:
        repeats = max(2, min(20, 200_000 // nodes))
        # A fresh process each: a heap that has held a million nodes is not the heap a small graph would find.
        with Sides(report.options) as sides:
            sides.call("growth.scaling", nodes=1_000)
            answers = sides.call("growth.scaling", nodes=nodes, repeats=repeats)
        for title, phases in titles:
            seconds = [[sum(times[phase] for phase in phases) for times in answer] for answer in answers]
            rows[title].append(_row("scaling", f"{nodes:,} nodes", "µs", seconds, MICRO / nodes))
    for title, group in rows.items():
        report.add(f"Graphs that grow: {title}, time per node", group)
        growth = ", ".join(
            f"{module} {group[-1].best(side) / group[0].best(side):.2f}×"
            for side, module in enumerate(report.options.modules())
        )
        report.note(f"  {sizes[-1]:,} against {sizes[0]:,} nodes, per node: {growth}")


def importing(report: Report) -> None:
    """How long a fresh interpreter waits for the import."""
    modules = report.options.modules()
    seconds: list[list[float]] = [[] for _ in modules]
    with TemporaryDirectory() as byte_code:
        for turn in range(1 + (2 if report.options.quick else 5)):
            for side, module in enumerate(modules):
                taken = _import_seconds(module, byte_code)
                if turn > 0:  # the first import writes the byte code and fills the file cache
                    seconds[side].append(taken)
    report.add("Import in a fresh process", [_row("import", "import", "ms", seconds, MILLI, 0.15)])


def peak_memory(report: Report) -> None:
    """The peak of the MLP's training step beyond what is alive between steps."""
    if not memory.measurable():
        report.note("\nPeak memory: not shown, since only Linux can tell and reset a high-water mark.")
        return
    rows = []
    for batch, wanted in ((256, 1.1), (4096, 1.1), (16384, 1.1)):
        if report.options.quick and batch > 256:
            continue
        with Sides(report.options, memory.ENVIRONMENT) as sides:
            peaks = sides.call("memory.peak_of_step", of="mlp.by_hand", batch=batch, steps=5)
        rows.append(_row("memory", f"784-512-512-10 MLP, batch {batch}", "MB", peaks, 1 / MEGABYTE, wanted))
    report.add("Peak memory of a training step", rows)


def changing(report: Report) -> None:
    """Many steps, each with a graph of its own; the cycle collector is off."""
    steps = 1_000 if report.options.quick else 10_000
    with Sides(report.options) as sides:
        curves = sides.call("growth.changing", steps=steps, every=steps // 10)
    report.note(f"\n{steps:,} steps whose graph changes every step, cycle collector off")
    for module, curve in zip(report.options.modules(), curves, strict=True):
        report.curves[f"changing, {module}"] = curve
        for name, title, unit in (
            ("resident", "resident MB", MEGABYTE),
            ("tensors", "live tensors", 1),
            ("blocks", "live blocks", 1),
        ):
            values = [point[name] / unit for point in curve]
            # The first point precedes the first step: what that one loads and caches is no growth.
            ends = f"{values[1]:.0f} after {curve[1]['step']:,}, {values[-1]:.0f} after {curve[-1]['step']:,}"
            report.note(f"  {module:8} {title:12} {sparkline(values)}  {ends}")


PARTS = {
    "chain": chains,
    "tagger": tagger,
    "mlp": perceptron,
    "large": large,
    "scaling": scaling,
    "import": importing,
    "memory": peak_memory,
    "changing": changing,
}


def _row(
    part: str, work: str, unit: str, rounds: list[list[Any]], factor: float, wanted: float | None = None
) -> Measurement:
    scaled = [[value * factor for value in side] for side in rounds]
    return Measurement(part, work, unit, scaled, wanted)


def _import_seconds(module: str, byte_code: str) -> float:
    # Compiled once for all sides, wherever they are installed and whatever the environment says about it.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = f"from time import perf_counter as now; start = now(); import {module}; print(now() - start)"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if result.returncode != 0:
        raise BenchmarkError(f"import {module} failed:\n{result.stderr}")
    return float(result.stdout)
