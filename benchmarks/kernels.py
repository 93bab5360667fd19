"""The suite `kernels`: loops over large arrays, fused functions, row-wise functions, Adam, making a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Measurement, Options, Report, Sides, Skipped
from benchmarks.rows import Rows, state_threads, sum_up
from benchmarks.worker import Worker
from benchmarks.works import adam, rowwise

SUMMARY = "native loops: elementwise ops, fused chains, softmax and norms, LSTM gates, Adam, building a kernel"

MICRO = 1e6
MILLI = 1e3
GIGA = 1e9
FLOAT_BYTES = 4
OPS_IN_CHAIN = 200
# The small-op chain took 0.54 to 0.55 of PyTorch's time when every op ran in NumPy; a twentieth is noise.
BEFORE_KERNELS = 0.57


@dataclass(frozen=True)
class Sizes:
    """How large the works are; tests make them small."""

    elementwise: tuple[int, ...] = (100_000, 4_000_000)
    chain: int = 1_000_000
    rows: int = 1024
    columns: int = 1024
    layers: int = adam.LAYERS
    copied: int = 10_000_000

    @property
    def parameters(self) -> int:
        return self.layers * (adam.INPUTS + 1) * adam.OUTPUTS


SIZES = Sizes()


def run(options: Options) -> Report:
    """Measure every part the options want, print each as it is done, and count what was met."""
    report = Report("kernels", options)
    report.begin()
    state_threads(report)
    for name, part in PARTS.items():
        if options.wants(name):
            part(report)
    sum_up(report)
    return report


def elementwise(report: Report) -> None:
    """Single ops, nothing recorded: in a cache and far beyond it."""
    aims = {"add": None, "mul": None, "tanh": 0.5, "exp": 0.5, "gelu": 0.5}
    for count in SIZES.elementwise:
        rows = Rows(report, "elementwise", *(("µs", MICRO) if count < 1_000_000 else ("ms", MILLI)))
        with Sides(report.options) as sides:
            for op, aim in aims.items():
                rows.measure(sides, op, "elementwise.forward", 1.0, aim, op=op, count=count)
        rows.print(f"Elementwise ops on {count:,} float32 numbers, forward")


def chains(report: Report) -> None:
    """Several elementwise ops in a row; the peer runs them op by op either way."""
    works = (("(x*w+b).tanh()*y", "fusing.affine_tanh"), ("10 ops", "fusing.ten_ops"))
    rows = Rows(report, "fusion", "ms", MILLI)
    for title, work in works:
        for backward in (False, True):
            _plain_and_fused(rows, title, work, backward, (0.6, 0.3), count=SIZES.chain)
    rows.print(f"Elementwise chains on {SIZES.chain:,} float32 numbers")


def row_functions(report: Report) -> None:
    """Functions that need a whole row."""
    rows = Rows(report, "rows", "ms", MILLI)
    size = {"rows": SIZES.rows, "columns": SIZES.columns}
    with Sides(report.options) as sides:
        for kind in rowwise.KINDS:
            rows.measure(sides, kind, "rowwise.forward_and_backward", 1.0, 0.6, kind=kind, **size)
    rows.print(f"Row-wise functions on float32[{SIZES.rows},{SIZES.columns}], forward + backward")


def lstm(report: Report) -> None:
    """The elementwise part of an LSTM cell: small arrays, many ops."""
    rows = Rows(report, "lstm", "µs", MICRO)
    _plain_and_fused(rows, "gates, cell, state", "fusing.lstm_gates", True, (0.4, 0.2))
    rows.print("LSTM gates, float32[64,4·128]")


def optimiser(report: Report) -> None:
    """Adam over many tensors, beside the plain copy: it does so little arithmetic that memory decides."""
    rows = Rows(report, "adam", "ms", MILLI)
    with Sides(report.options) as sides:
        for variant in ("default", "fused"):
            title = f"update, {report.options.peer}'s {variant}"
            rows.measure(sides, title, "adam.update", 1.0, 0.5, variant=variant, layers=SIZES.layers)
    rows.print(f"Adam over {SIZES.parameters:,} float32 parameters in {2 * SIZES.layers} tensors")
    threads = report.options.threads
    bandwidths = {number: _copy_bandwidth(report.options, number) for number in sorted({1, threads})}
    moved = adam.ARRAYS_MOVED * FLOAT_BYTES * SIZES.parameters / GIGA
    for row in rows.measured:
        for side, module in enumerate(report.options.modules()):
            reached = moved / (row.best(side) / MILLI)
            share = reached / bandwidths[threads]
            report.note(f"  {row.work}: {module} moves {reached:.1f} GB/s, {share:.0%} of the copy's")
    copies = ", ".join(f"{speed:.1f} GB/s with {number} threads" for number, speed in bandwidths.items())
    report.note(f"  np.copyto of {SIZES.copied * FLOAT_BYTES / 1e6:.0f} MB, read and write counted: {copies}")
    report.curves["copy bandwidth, GB/s by threads"] = bandwidths


def small_ops(report: Report) -> None:
    """The eager suite's chain: native kernels must cost small ops nothing."""
    rows = Rows(report, "chain", "µs", MICRO / OPS_IN_CHAIN)
    with Sides(report.options) as sides:
        rows.measure(sides, "forward + backward", "chain.small_ops", BEFORE_KERNELS, None, ops=OPS_IN_CHAIN)
    rows.print(f"Chain of {OPS_IN_CHAIN} small ops (float32[8,8]), time per op")


def building(report: Report) -> None:
    """A fresh process each: with an empty cache folder, then with what the first one left there."""
    works = (
        ("gelu from formula to result", "build.next_kernel", (80.0, 30.0), (2.0, None)),
        ("the same as the first kernel", "build.first_kernel", (80.0, 30.0), (None, None)),
        ("first F.gelu, 1M numbers", "build.first_call", (None, None), (None, None)),
    )
    options = report.options
    rows, imports = [], []
    for title, work, cold, warm in works:
        answers: list[list[dict[str, float]]] = [[], []]
        try:
            for _ in range(2 if options.quick else 7):
                with TemporaryDirectory() as folder:
                    for found in answers:
                        with Worker(options.subject, options.threads, {"WAYFARE_CACHE": folder}) as worker:
                            found.append(worker.call(work))
        except Skipped as reason:
            report.skip("build", title, str(reason))
            continue
        if work != "build.next_kernel":  # there it was imported before
            imports += [answer["llvmlite"] * MILLI for found in answers for answer in found]
        for state, found, limits in zip(("cold", "from disk"), answers, (cold, warm), strict=True):
            problem = _not_what_was_meant(state, found)
            if problem is not None:
                report.skip("build", f"{title}, {state}", problem)
                continue
            seconds = [answer["seconds"] * MILLI for answer in found]
            rows.append(Measurement("build", f"{title}, {state}", "ms", [seconds], *limits, absolute=True))
    if rows:
        report.add("Making a kernel (limits in ms)", rows)
        report.note("  In it: code, optimising, linking, the cache file; for the first, starting LLVM.")
        report.note(f"  Not in it: importing llvmlite, {min(imports, default=0):.0f} ms at best.")


PARTS = {
    "elementwise": elementwise,
    "fusion": chains,
    "rows": row_functions,
    "lstm": lstm,
    "adam": optimiser,
    "chain": small_ops,
    "build": building,
}


def _plain_and_fused(
    rows: Rows, title: str, work: str, backward: bool, limits: tuple[float, float], **size: Any
) -> None:
    direction = "forward + backward" if backward else "forward"
    with Sides(rows.report.options) as sides:
        rows.measure(sides, f"{title}, {direction}, plain", work, None, None, fused=False, backward=backward, **size)
        rows.measure(sides, f"{title}, {direction}, fused", work, *limits, fused=True, backward=backward, **size)


def _copy_bandwidth(options: Options, threads: int) -> float:
    with Worker("numpy", threads) as worker:
        worker.prepare("adam.copying", count=SIZES.copied, threads=threads)
        best = min(worker.time(1) for _ in range(options.rounds))
    return 2 * FLOAT_BYTES * SIZES.copied / best / GIGA


def _not_what_was_meant(state: str, answers: list[dict[str, float]]) -> str | None:
    """A figure for a kernel that was not made, or not found on disk, would be a figure for something else."""
    if state == "cold":
        return None if all(answer["built"] for answer in answers) else "no kernel was built."
    if any(answer["built"] for answer in answers):
        return "a kernel was built although the cache folder should hold it."
    return None if all(answer["loaded"] for answer in answers) else "no kernel was loaded."
