"""The suite `library`: training steps of whole models made of layers, optimisers, and tables of embeddings."""

from __future__ import annotations

from benchmarks.harness import Options, Report, Sides
from benchmarks.rows import Rows, state_threads, sum_up
from benchmarks.works.training import OPTIMISERS

SUMMARY = "layers and optimisers: MLP, small CNN, transformer, packed LSTM, Adam, embeddings with few rows touched"

MICRO = 1e6
MILLI = 1e3
MUST, AIM = 1.1, 0.9
# In a transformer Wayfare's own threads and those of BLAS wait for each other, a fifth of the time on two idle cores.
OWN_WAITING = 0.3
SMALL_TABLE, LARGE_TABLE = 2_000, 200_000


def run(options: Options) -> Report:
    """Measure every part the options want, print each as it is done, and count what was met."""
    report = Report("library", options)
    report.begin()
    state_threads(report)
    for name, part in PARTS.items():
        if options.wants(name):
            part(report)
    sum_up(report)
    return report


def models(report: Report) -> None:
    """Forward, backward and an Adam step of models of everyday kinds."""
    rows = Rows(report, "models", "ms", MILLI)
    with Sides(report.options) as sides:
        rows.measure(sides, "MLP 784-512-512-10, batch 256", "training.mlp", MUST, AIM)
        rows.measure(sides, "MLP 16-32-32-4, batch 32", "training.mlp", MUST, AIM, batch=32, sizes=(16, 32, 32, 4))
        rows.measure(sides, "CNN on 64 pictures of 8×8", "training.cnn", MUST, AIM)
        title = "2 transformer blocks, d 256, T 128, B 8"
        rows.measure(sides, title, "training.transformer", MUST, AIM, OWN_WAITING)
        rows.measure(sides, "the same without dropout", "training.transformer", MUST, AIM, OWN_WAITING, dropout=0.0)
        rows.measure(sides, "packed LSTM, 64 sequences of 5–60", "training.packed_lstm", MUST, AIM)
    rows.print("Training step with Adam")


def optimisers(report: Report) -> None:
    """Updates of five million parameters."""
    rows = Rows(report, "optimisers", "ms", MILLI)
    with Sides(report.options) as sides:
        for kind in ("Adam", "AdamW"):
            rows.measure(sides, kind, "training.adam", MUST, AIM, kind=kind)
    rows.print("Update of 5,000,000 float32 parameters in 40 tensors")


def tables(report: Report) -> None:
    """A step must cost what the rows it touches cost, however long the table is."""
    rows = Rows(report, "tables", "µs", MICRO)
    with Sides(report.options) as sides:
        for name in OPTIMISERS:
            for length in (SMALL_TABLE, LARGE_TABLE):
                title = f"{name}, {length:,} rows"
                rows.measure(sides, title, "training.table", None, None, optimiser=name, rows=length)
    rows.print("Embedding of width 128, 1,000 rows looked up: forward, backward, update")
    best = {row.work: row.best(0) for row in rows.measured}
    for name in OPTIMISERS:
        small, large = (best.get(f"{name}, {length:,} rows") for length in (SMALL_TABLE, LARGE_TABLE))
        if small and large:
            report.note(f"  {name}: {LARGE_TABLE:,} rows cost {large / small:.2f}× of {SMALL_TABLE:,}")


PARTS = {"models": models, "optimisers": optimisers, "tables": tables}
