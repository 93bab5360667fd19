"""One prediction layer by layer: what every layer of a model gave for one input, seen through forward hooks."""

from __future__ import annotations

from typing import Any, NamedTuple

import wayfare as wf
from wayfare import nn


class Call(NamedTuple):
    """A layer that ran: its name in the model, its class, and the first tensor it gave."""

    layer: str
    kind: str
    output: wf.Tensor


def traced(model: nn.Module, *inputs: Any) -> tuple[wf.Tensor, list[Call]]:
    """The model's answer, in eval mode and without recording, and each call of a layer in the order they ran."""
    calls: list[Call] = []

    def hook_of(name: str) -> Any:
        def note(module: nn.Module, _inputs: Any, output: Any) -> None:
            calls.append(Call(name, type(module).__name__, _first_tensor(output)))

        return note

    layers = {name: module for name, module in model.named_modules() if not list(module.children())}
    handles = [module.register_forward_hook(hook_of(name)) for name, module in layers.items()]
    training = model.training
    model.eval()
    try:
        with wf.no_grad():
            answer = model(*inputs)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return answer, calls


def _first_tensor(output: Any) -> wf.Tensor:
    """The tensor, the values of a ragged one, or the first one of several."""
    if isinstance(output, wf.Tensor):
        return output
    if isinstance(output, wf.Ragged):
        return output.values
    return _first_tensor(output[0])
