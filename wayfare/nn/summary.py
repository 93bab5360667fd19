"""`model.summary(…)`: a table of a model's layers — outputs, parameters, and how often each runs for one input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wayfare.autograd.modes import no_grad
from wayfare.core.format import bytes_text, cut
from wayfare.core.generator import fork_rng
from wayfare.core.tensor import Tensor
from wayfare.nn.modes import in_mode
from wayfare.nn.module import Module

__all__ = ["summary", "Summary", "LayerSummary"]

_WIDTH = 80


@dataclass
class LayerSummary:
    """One module of a model: its path, its class, what it gave out, its own parameters, and its calls."""

    path: str
    kind: str
    parameters: int
    trainable: int
    output: str = ""
    calls: int = 0


@dataclass
class Summary:
    """The layers of a model, as data and (`str`) as a table that fits 80 columns."""

    name: str
    layers: list[LayerSummary] = field(default_factory=list)
    parameters: int = 0
    trainable: int = 0
    bytes: int = 0
    ran: bool = False

    def __str__(self) -> str:
        columns = ["layer", "kind", "output", "parameters", "calls"] if self.ran else ["layer", "kind", "parameters"]
        rows = [columns]
        for layer in self.layers:
            depth = layer.path.count(".") + bool(layer.path)
            label = "  " * depth + (layer.path.rpartition(".")[2] or self.name)
            count = f"{layer.parameters:,}" if layer.parameters else ""
            ran = [layer.output, count, str(layer.calls) if layer.output else ""] if self.ran else [count]
            rows.append([label, layer.kind, *ran])
        rows = [[cell if len(cell) <= 30 else cell[:29] + "…" for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        # The labels and kinds give way when the table would not fit the page.
        while sum(widths) + 2 * (len(widths) - 1) > _WIDTH and max(widths[:3]) > 8:
            widths[widths.index(max(widths[:3]))] -= 1
        numeric = {columns.index("parameters"), len(columns) - 1}
        lines = []
        for row in rows:
            cells = []
            for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
                shown = cut(cell, width)
                cells.append(shown.rjust(width) if i in numeric else shown.ljust(width))
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        frozen = self.parameters - self.trainable
        lines.append("-" * len(lines[1]))
        lines.append(f"{self.parameters:,} parameters ({self.trainable:,} trainable, {frozen:,} frozen), "
                     f"{bytes_text(self.bytes)}")  # fmt: skip
        return "\n".join(lines)

    __repr__ = __str__


def _shown(output: Any) -> str:
    """The shape of the output of a layer, of any type."""
    if isinstance(output, Tensor):
        return repr(output.spec)
    if isinstance(output, (tuple, list)):
        parts = [_shown(part) for part in output[:3]] + (["…"] if len(output) > 3 else [])
        return "(" + ", ".join(parts) + ")"
    if isinstance(output, dict):
        return "{" + ", ".join(f"{key}: {_shown(value)}" for key, value in output.items()) + "}"
    values = getattr(output, "values", None)  # a ragged tensor, whose rows lie one behind the other
    return f"{type(output).__name__} {values.spec}" if isinstance(values, Tensor) else type(output).__name__


def summary(model: Module, *inputs: Any, **options: Any) -> Summary:
    """Describe a model; given inputs, it is called with them once, without leaving a trace in it.

    `calls` counts how often each layer ran for those inputs: in a recursive model, as often as the data asked.
    """
    found = Summary(type(model).__name__, ran=bool(inputs or options))
    entries: dict[Module, LayerSummary] = {}
    for path, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        entry = LayerSummary(path, type(module).__name__, sum(p.numel() for p in own),
                             sum(p.numel() for p in own if p.requires_grad),
                             "" if type(module).forward is Module.forward else "not called")  # fmt: skip
        entries[module] = entry
        found.layers.append(entry)
    distinct = list(model.parameters())
    found.parameters = sum(p.numel() for p in distinct)
    found.trainable = sum(p.numel() for p in distinct if p.requires_grad)
    found.bytes = sum(p.nbytes for p in distinct)
    if found.ran:
        def note(module: Module, _args: Any, output: Any) -> None:
            entries[module].calls += 1
            entries[module].output = _shown(output)

        handles = [module.register_forward_hook(note) for module in entries]
        try:
            # A run that leaves no trace: nothing is recorded, learnt, drawn or counted in the model's statistics.
            with in_mode(model, False), no_grad(), fork_rng():
                model(*inputs, **options)
        finally:
            for handle in handles:
                handle.remove()
    return found


Module.summary = summary
