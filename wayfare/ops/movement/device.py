"""From one device to another: a copy, and the copy back for its gradient."""

from __future__ import annotations

import numpy as np

from wayfare.core.device import Device, moved
from wayfare.core.op import Sample
from wayfare.core.signature import TEXT, takes
from wayfare.ops._define import define, in_front

# `source` is where the input is, so that its gradient finds the way back.
to_device = define(
    "to_device",
    signature=takes(1, device=TEXT, source=TEXT),
    family="movement",
    moves="identity",
    any_device=True,
    forward=lambda x, *, device, source: moved(x, Device(device)),
    infer=lambda x, *, device, source: x,
    vjp=(lambda m, g, _y, _x, *, device, source: m.to_device(g, device=source, source=device),),
    batch=in_front("to_device", lambda attrs, size: attrs),
    onnx=lambda b, x, *, device, source: x,
    reference=lambda x, device, source: np.array(x.tolist()).reshape(x.shape),
    samples=lambda rng: [Sample((rng.normal(size=(2, 3)),), {"device": "cpu", "source": "cpu"})],
    grad_name="ToCopyBackward0",
)
# Its result may be on another device, which only the Python side of dispatch expects.
to_device.large, to_device.large_from = to_device.forward, 0
