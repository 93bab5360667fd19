"""Small modules that the snippets about nn.Module are about: an affine map, and a model that nests everything."""

from __future__ import annotations


def numbers(m, *shape, start=1.0):
    count = 1
    for size in shape:
        count *= size
    return (m.arange(count, dtype=m.float64) / count + start).reshape(shape)


def affine(m, inside=3, outside=3, start=1.0):
    class Affine(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = m.nn.Parameter(numbers(m, outside, inside, start=start))
            self.bias = m.nn.Parameter(numbers(m, outside))
            self.register_buffer("scale", m.ones(1, dtype=m.float64))
            self.register_buffer("scratch", m.zeros(2), persistent=False)

        def forward(self, x, shift=0.0):
            return (x @ self.weight.t() + self.bias) * self.scale + shift

        def extra_repr(self):
            return f"{inside}, {outside}"

    return Affine()


def nested(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = affine(m)
            self.blocks = m.nn.ModuleList([affine(m) for _ in range(3)])
            self.named = m.nn.ModuleDict({"left": affine(m), "right": affine(m, 3, 2)})
            self.again = self.first
            self.free = m.nn.Parameter(m.ones(2))
            self.empty = None
            self.register_parameter("nothing", None)
            self.register_module("gone", None)

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.named["right"](x)

    return Net()
