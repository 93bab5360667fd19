"""All scenarios, and which of them are known to differ."""

import importlib
import pathlib

from tests.batch.scenarios.harness import SCENARIOS
from tests.batch.scenarios.known import KNOWN

for _file in sorted(pathlib.Path(__file__).parent.glob("cases_*.py")):
    importlib.import_module(f"tests.batch.scenarios.{_file.stem}")

ALL = [(name, way) for name, scenario in SCENARIOS.items() for way in scenario.ways]


def known(name, way):
    """What is known to differ in this scenario by this way; None where nothing is.

    The loop of `batch=False` is meant only where it is named.
    """
    if name not in KNOWN:
        return None
    ways, words = KNOWN[name].split(": ", 1)
    first, *rest = ways.split(", ")
    if first == "all":
        listed = way != "alone"
    elif first.startswith("all but "):
        listed = way not in ("alone", first.removeprefix("all but "), *rest)
    else:
        listed = way in (first, *rest)
    return words if listed else None
