"""The suite `seeing`: what a step costs with somebody looking on, as a multiple of the same step alone."""

from __future__ import annotations

from benchmarks.harness import Measurement, Options, Report, Sides
from benchmarks.worker import Skipped

SUMMARY = "the cost of looking on: anomaly mode, recording, profiling, stops; keeping a run of 100,000 nodes"

MODELS = {
    "mlp": "MLP 784-512-512-10, batch 64",
    "lstm": "LSTMCell in a loop of 30 steps, batch 32, hidden 128",
    "small_ops": "chain of 200 ops on float32[8,8]",
}
# How somebody looks on, and the multiple that is allowed on the models (a chain of small ops is shown as it is).
LOOKING = {
    "anomaly": ("anomaly mode", 1.3), "record": ("recording", 2.0), "profile": ("profiling", None),
    "stop": ("a stop on NaN", None),
}  # fmt: skip


def run(options: Options) -> Report:
    """Measure every part the options want and print each as it is done."""
    report = Report("seeing", options)
    report.begin()
    for how in LOOKING:
        if options.wants(how):
            _cost(report, how)
    if options.wants("keeping"):
        _keeping(report)
    return report


def _cost(report: Report, how: str) -> None:
    title, allowed = LOOKING[how]
    rounds = 10 if report.options.quick else 100
    rows = []
    with Sides(report.options) as sides:
        for model, name in MODELS.items():
            for worker, module in zip(sides.workers, report.options.modules(), strict=True):
                mine = module == report.options.subject
                try:
                    found = worker.call("seen.ratio", model=model, how=how, rounds=rounds)
                except Skipped:
                    continue  # a peer has no such thing
                wanted = allowed if mine and model != "small_ops" else None
                label = name if mine else f"{name}, {module}"
                rows.append(Measurement(how, label, "×", [[found]], wanted, absolute=True))
    report.add(f"A training step under {title}, times the step alone", rows)


def _keeping(report: Report) -> None:
    nodes = 10_000 if report.options.quick else 100_000
    with Sides(report.options) as sides:
        found = sides.workers[0].call("seen.seconds_to_keep", nodes=nodes)
    rows = [Measurement("keeping", what, "s", [[found[what]]], absolute=True) for what in ("record", "save")]
    rows.append(Measurement("keeping", "both", "s", [[found["record"] + found["save"]]], 10.0, absolute=True))
    report.add(f"A run of {nodes:,} nodes, forward and backward", rows)
    report.note(f"  the page has {found['megabytes']:.1f} MB")
