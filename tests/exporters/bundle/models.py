"""Functions and modules that the tests export, and what a file of one is made of."""

import io
import json

import numpy as np

import wayfare as wf
from wayfare.io.header import header_bytes, read_header


class Net(wf.nn.Module):
    """A bit of everything: look-ups, attention, convolution, recurrence, a decision, sorting, joining."""

    def __init__(self):
        super().__init__()
        self.embedding = wf.nn.Embedding(7, 8)
        self.attention = wf.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.conv = wf.nn.Conv1d(8, 6, 3, padding=1)
        self.lstm = wf.nn.LSTM(6, 5, batch_first=True)
        self.norm = wf.nn.LayerNorm(5)

    def forward(self, ids, scale):
        h = self.conv(self.attention(self.embedding(ids)).transpose(1, 2))
        pooled = wf.nn.functional.max_pool1d(h, 2)
        h = self.norm(self.lstm(h.transpose(1, 2))[0])
        h = h * scale if scale.sum() > 0 else h - 1
        top, at = h.mean(1).sort(-1)
        joined = wf.cat([top[:, 1:], wf.softmax(top, -1)], 1)
        return {"joined": joined, "at": at, "pooled": pooled, "rolled": wf.roll(top, 2, 1).clamp(-1, 1),
                "pairs": (wf.einsum("bi,bj->bij", top, top), 3)}  # fmt: skip


def make_net(path):
    wf.manual_seed(0)
    net = Net().eval()
    ids = wf.randint(0, 7, (2, 6))
    axes = {"ids": {0: "batch", 1: "time"}}
    return net, wf.export(net, [(ids, wf.ones(5)), (ids, -wf.ones(5))], path, dynamic_axes=axes)


def repeated(x):
    """A loop over a size."""
    h = x[:, 0] * 0
    seen = []
    for t in range(x.shape[1]):
        h = wf.tanh(h + x[:, t])
        seen.append(h)
    return h, wf.stack(seen, 1)


def doubled(x):
    """A loop until a value is reached."""
    return wf.while_loop(lambda i, v: v.sum() < 100, lambda i, v: (i + 1, v * 2), (wf.tensor(0), x))


def unpacked(path):
    """The graph and the arrays of a file."""
    raw = path.read_bytes()
    header = read_header(io.BytesIO(raw), len(raw), str(path))
    arrays = {}
    for name, stored in header.tensors.items():
        part = raw[header.start + stored.begin : header.start + stored.end]
        arrays[name] = np.frombuffer(part, stored.dtype.numpy).reshape(stored.shape).copy()
    return json.loads(header.metadata["wayfare.program"]), arrays


def packed(document, arrays):
    """A file with this graph, as bytes."""
    header, order = header_bytes(arrays, {"wayfare.program": json.dumps(document), "format": "pt"})
    return header + b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in order)
