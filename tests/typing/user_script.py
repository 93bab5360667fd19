"""What a user writes and a type checker reads: `test_typing.py` runs mypy --strict over this file, and the file itself.

`assert_type` fails in mypy where the type is another one. A line with `type: ignore` must be an error: mypy in strict
mode complains of an ignore that is not needed.
"""

from typing import assert_type

import wayfare as wf
from wayfare import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: wf.Tensor, scale: float = 1.0) -> wf.Tensor:
        h, c = self.cell(self.hidden(x).tanh() * scale)
        assert_type(h, wf.Tensor)
        return h + c

    @wf.compile
    def both(self, x: wf.Tensor, times: int) -> tuple[wf.Tensor, int]:
        return self(x) * times, times

    @wf.compile(check=False)
    def once(self, x: wf.Tensor) -> wf.Tensor:
        return self(x)


@wf.compile
def scaled(x: wf.Tensor, by: float) -> wf.Tensor:
    return x * by


def summed(x: wf.Tensor) -> wf.Tensor:
    return x.sum()


class Rows(wf.data.Dataset[wf.Tensor]):
    def __getitem__(self, index: int) -> wf.Tensor:
        return wf.ones(4) * index

    def __len__(self) -> int:
        return 6


def joined(rows: list[wf.Tensor]) -> dict[str, wf.Tensor]:
    return {"rows": wf.stack(rows)}


net = Net()
x = wf.randn(3, 4)

# A call of a module takes and gives what its forward does.
assert_type(net(x), wf.Tensor)
assert_type(net(x, scale=2.0), wf.Tensor)
assert_type(nn.CrossEntropyLoss()(net(x), wf.tensor([0, 1, 2])), wf.Tensor)
assert_type(nn.GRUCell(4, 4)(x), wf.Tensor)

# Compiled functions, methods and modules keep their signatures.
assert_type(scaled(x, 2.0), wf.Tensor)
assert_type(net.both(x, 3), tuple[wf.Tensor, int])
assert_type(net.once(x), wf.Tensor)
assert_type(wf.compile(net), Net)
assert_type(wf.compile(net, check=False)(x), wf.Tensor)
assert_type(wf.compile(summed, fullgraph=True)(x), wf.Tensor)
print(scaled.explain(), Net.both.explain())

# So do maps.
assert_type(wf.map(net, [x, x]), list[wf.Tensor])
assert_type(wf.map(summed, [x], batch=True), list[wf.Tensor])
assert_type(wf.map(scaled, [x, x], [1.0, 2.0]), list[wf.Tensor])
assert_type(wf.map(lambda n: n + 1, [1, 2]), list[int])

# Batches have types, as far as the dataset or collate_fn says them.
for inputs, _targets in wf.data.DataLoader(wf.data.TensorDataset(x, x), batch_size=2, shuffle=True):
    assert_type(inputs, wf.Tensor)
for rows in wf.data.DataLoader(Rows(), 3):
    assert_type(rows, wf.Tensor)
for row in wf.data.DataLoader(Rows(), batch_size=None):
    assert_type(row, wf.Tensor)
for batch in wf.data.DataLoader(Rows(), batch_size=3, collate_fn=joined):
    assert_type(batch, dict[str, wf.Tensor])


def last(loader: wf.data.DataLoader) -> wf.Tensor:
    for inputs, _targets in loader:
        found: wf.Tensor = inputs
    return found


last(wf.data.DataLoader(wf.data.TensorDataset(x, x)))


def mistakes() -> None:
    net("x")  # type: ignore[arg-type]
    net(x, sclae=2.0)  # type: ignore[call-arg]
    scaled(x)  # type: ignore[call-arg]
    net.both(x, "3")  # type: ignore[arg-type]
    wf.compile(net, fulgraph=True)  # type: ignore[call-overload]
    wf.map(summed, [1, 2])  # type: ignore[arg-type]
    wf.data.DataLoader(Rows(), shufle=True)  # type: ignore[call-overload]
