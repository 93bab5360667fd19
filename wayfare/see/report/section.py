"""What a page is made of: sections, each with its markup or with the way to have it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wayfare.see.pages.markup import Markup

__all__ = ["Material", "Section"]


@dataclass
class Section:
    """A part of the page. Without a body, `missing` says what it needs; `lines` is what the text form says of it."""

    key: str
    title: str
    body: Markup | None = None
    missing: str = ""
    lines: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)  # digests of scripts that a page inside this section runs


@dataclass
class Material:
    """Everything a report may contain; None for what was neither given nor found."""

    title: str
    model: Any = None
    stages: list[tuple[Any, ...]] = field(default_factory=list)
    data: Any = None
    batch: Any = None
    watched: Any = None
    loss: float | None = None
    gradients: dict[str, float | None] = field(default_factory=dict)
    history: Any = None
    example: tuple[Any, ...] | None = None
    answer: Any = None  # of the model, for the example
    calls: list[Any] = field(default_factory=list)  # of its layers, on the way to the answer
    truth: Any = None
    names: list[str] | None = None
    run: Any = None
    metrics: Any = None
    scores: dict[str, float] = field(default_factory=dict)
    metrics_on: str = ""
    comparison: Any = None
    batching: Any = None
    profile: Any = None
    troubles: dict[str, str] = field(default_factory=dict)  # what could not be made, by section, and why
