"""One settings object; nothing else reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.strip().lstrip("-").isdigit() else default


@dataclass(slots=True)
class PrintOptions:
    """How `repr(tensor)` writes numbers; the names and defaults are PyTorch's."""

    precision: int = 4
    threshold: int = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


@dataclass(slots=True)
class Settings:
    """What a user may set for the whole process."""

    # Past this many elements `repr` adds a line of statistics.
    statistics_threshold: int = field(default_factory=lambda: _number("WAYFARE_STATISTICS_THRESHOLD", 1000))
    printing: PrintOptions = field(default_factory=PrintOptions)


settings = Settings()
