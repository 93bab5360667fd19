"""Tensors that examples have recorded, used in another thread: they are computed there first."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.nn import functional as F

USES = {
    "mul": lambda y: (y * 3).sum().item(), "sum": lambda y: y.sum().item(), "compare": lambda y: (y > 0).tolist(),
    "add": lambda y: wf.add(y, y).tolist(), "reshape": lambda y: y.reshape(2, 1)[0].tolist(),
    "relu": lambda y: F.relu(y).tolist(), "neg": lambda y: (-y).tolist(), "from": lambda y: (1 - y).tolist(),
    "module": lambda y: nn.Tanh()(y).tolist(), "cat": lambda y: wf.cat([y, y]).tolist(),
    "max": lambda y: y.max().item(),
    "loop": lambda y: [v.item() for v in y], "item": lambda y: y[0].item(), "matmul": lambda y: (y @ y).item(),
    "numpy": lambda y: y.detach().numpy().tolist(), "in place": lambda y: y.mul_(2).tolist(),
    "softmax": lambda y: y.softmax(0).tolist(), "exp": lambda y: y.exp().tolist(),
    "chunk": lambda y: y.chunk(2)[0].tolist(),
    "read": lambda y: y.tolist(),
}  # fmt: skip


@pytest.mark.parametrize("how", ["map", "batch", "block"])
@pytest.mark.parametrize("name", USES)
def test_a_tensor_is_used_in_another_thread(name, how):
    with ThreadPoolExecutor(1) as pool:

        def function(x):
            y = x * 2
            return pool.submit(lambda: USES[name](y)).result(timeout=60)

        xs = [wf.ones(2), wf.ones(2) * 2]
        want = [function(x) for x in xs]
        if how == "block":
            with wf.batching():
                got = [function(x) for x in xs]
        else:
            got = wf.map(function, xs, batch=True if how == "batch" else None)
        assert got == want
