"""All cases."""

import importlib
import pathlib

from tests.compiler.hostile.harness import CASES

for _file in sorted(pathlib.Path(__file__).parent.glob("cases_*.py")):
    importlib.import_module(f"tests.compiler.hostile.{_file.stem}")

ALL = list(CASES)
