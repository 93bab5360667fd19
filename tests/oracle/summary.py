"""Prints, at the end of a test run, on how many database entries Wayfare and PyTorch agree.

It is a hook of pytest, imported by tests/conftest.py: under xdist only that file is loaded by the process
that writes the summary. It must not import PyTorch.
"""

from __future__ import annotations

PROPERTY = "oracle"


def pytest_terminal_summary(terminalreporter):
    """Gathers what the tests left in their reports, which also travel from xdist's workers."""
    agreeing = {}
    samples = gradients = 0
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == PROPERTY and report.when == "call":
                    agreeing[value["entry"]] = agreeing.get(value["entry"], True) and value["agrees"]
                    samples += value["samples"]
                    gradients += value["gradients"]
    if agreeing:
        terminalreporter.section("PyTorch as referee")
        terminalreporter.write_line(
            f"{sum(agreeing.values())} of {len(agreeing)} entries of PyTorch's operator database agree "
            f"({samples:,} samples, {gradients:,} with gradients)"
        )
