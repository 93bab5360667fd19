"""Modules inside containers that do more than compute: their Python runs once for each example, as in the loop."""

import copy
import gc
import weakref

import pytest

import wayfare as wf
from wayfare import nn


class Penalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        h = self.layer(x)
        self.penalty = (h**2).mean()
        return h.tanh()


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", wf.zeros(2))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach()
        return x - self.mean


class Count(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * self.n


class Collect(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        y = x * 2
        self.seen.append(y)
        return y


class Length(nn.Module):
    def __init__(self):
        super().__init__()
        self.length = None
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        self.length = len(x)
        return self.layer(x).tanh()


class Show(nn.Module):
    def forward(self, x):
        print("shape", tuple(x.shape))
        return x + 1


class Clears(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        for p in self.parameters():
            p.grad = None
        return self.layer(x)


class Loops(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), child])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Indexes(Loops):
    def forward(self, x):
        return self.layers[1](x) * 2


class Named(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.parts = nn.ModuleDict({"a": child})

    def forward(self, x):
        return self.parts["a"](x) + 1


class Children(Loops):
    def forward(self, x):
        return list(self.layers.children())[1](x) + 1


class PlainList(nn.Module):
    def __init__(self, child):
        super().__init__()
        self.child = child
        self.calls = [wf.tanh, child]

    def forward(self, x):
        for call in self.calls:
            x = call(x)
        return x


CHILDREN = [Penalty, Mean, Count, Collect, Length, Show, Clears]
PARENTS = {
    "Sequential": lambda child: nn.Sequential(nn.Identity(), child),
    "Sequential of Sequential": lambda child: nn.Sequential(nn.Sequential(child), nn.Identity()),
    "loop over a ModuleList": Loops,
    "index of a ModuleList": Indexes,
    "ModuleDict": Named,
    "children()": Children,
    "list of callables": PlainList,
}


def state(net):
    """What the children keep."""
    kept = []
    for child in net.modules():
        for name in ("penalty", "mean", "n", "length", "seen"):
            value = child.__dict__.get(name)
            values = value if name == "seen" and value else [value]
            kept += [v.tolist() if isinstance(v, wf.Tensor) else v for v in values]
        kept += [None if p.grad is None else p.grad.tolist() for p in child.parameters()]
    return kept


def assert_same(one, other):
    """The same, but for rounding."""
    if isinstance(one, (list, tuple)):
        assert type(one) is type(other) and len(one) == len(other), (one, other)
        for part, twin in zip(one, other, strict=True):
            assert_same(part, twin)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-6)
    else:
        assert one == other


@pytest.mark.filterwarnings("ignore:map")
@pytest.mark.parametrize("batch", [True, None])
@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("child", CHILDREN)
def test_like_the_loop(child, parent, batch, capsys):
    first = PARENTS[parent](child())
    second = copy.deepcopy(first)
    xs = [wf.randn(n, 2) if child is Length else wf.randn(2) for n in (3, 2, 3, 1)]
    for _ in range(3):
        found = []
        for net, run in ((first, lambda f: [f(x) for x in xs]), (second, lambda f: wf.map(f, xs, batch=batch))):
            made = run(net)
            if any(y.requires_grad for y in made):
                sum(y.sum() for y in made).backward()
            found.append(([y.tolist() for y in made], state(net), capsys.readouterr().out))
        assert_same(*found)


@pytest.mark.filterwarnings("ignore:map")
@pytest.mark.parametrize("batch", [True, None])
def test_a_penalty_that_the_loss_reads(batch):
    net = nn.Sequential(Penalty(), nn.Linear(2, 1))
    xs = [wf.tensor([float(i), 1.0]) for i in range(4)]

    def f(x):
        return net(x).sum() + net[0].penalty

    for _ in range(3):
        losses = [[f(x) for x in xs], wf.map(f, xs, batch=batch)]
        grads = [wf.autograd.grad(sum(own), list(net.parameters())) for own in losses]
        for one, other in zip(*losses, strict=True):
            assert one.item() == pytest.approx(other.item(), rel=1e-6)
        for one, other in zip(*grads, strict=True):
            wf.testing.assert_close(one, other)


def test_modules_that_were_mapped_are_freed():
    xs = [wf.ones(2) * i for i in range(4)]
    seen = []
    for _ in range(5):
        net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        wf.map(net, xs, batch=True)
        wf.map(Loops(nn.Linear(2, 2)), xs, batch=True)
        seen.append(weakref.ref(net))
        seen.append(weakref.ref(net[0].weight))
    del net
    gc.collect()
    assert not any(ref() is not None for ref in seen)


def test_a_module_that_was_mapped_is_copied_and_saved_like_others(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    plain = list(net.state_dict())
    xs = [wf.ones(2) * i for i in range(4)]
    wf.map(net, xs, batch=True)
    for make in (copy.deepcopy, copy.copy):
        twin = make(net)
        twin[0] = nn.Linear(2, 2)
        for one, other in zip(wf.map(twin, xs, batch=True), [twin(x) for x in xs], strict=True):
            wf.testing.assert_close(one, other)
    twin = copy.deepcopy(net)
    with wf.no_grad():
        twin[0].weight.mul_(2)
    for one, other in zip(wf.map(twin, xs, batch=True), [twin(x) for x in xs], strict=True):
        wf.testing.assert_close(one, other)
    assert list(net.state_dict()) == list(twin.state_dict()) == plain
