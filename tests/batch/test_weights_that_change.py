"""What a cell computes from its weights alone is computed anew at every step: weights change between them."""

import pytest

import wayfare as wf
from wayfare import nn


class OfWeights(nn.Module):
    """Uses weights by themselves: a part of one, a product of two, a look-up of a constant."""

    def __init__(self):
        super().__init__()
        self.table, self.square, self.bias = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Parameter(wf.randn(6))

    def forward(self, x):
        own = self.square(self.table(ONE)) + self.bias[:3]
        return (x @ self.square.weight.T).tanh() * own


ONE = wf.tensor(1)


@pytest.mark.parametrize("how", ["plain", "compiled", "fused"])
def test_training_goes_as_in_the_loop(how):
    found = []
    for batch in (True, False):
        wf.manual_seed(0)
        model = OfWeights()
        xs = [wf.randn(3) for _ in range(5)]
        call = {"plain": model, "compiled": wf.compile(model), "fused": nn.Sequential(model, nn.Tanh())}[how]
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = sum((h * h).sum() for h in wf.map(lambda x, call=call: call(call(x)), xs, batch=batch))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, [p.detach() for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for mine, other in zip(found[0][1], found[1][1], strict=True):
        wf.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)
