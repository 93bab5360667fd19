"""What random programs for `wf.compile` are made of: the names they may use, and the statements themselves.

In a statement `{a}` and `{b}` are tensors of real numbers that broadcast with each other, `{l}` a tensor that came from
outside, `{n}` and `{o}` new names. Statements speak of sizes only by asking for them, so that most of them fit other
sizes too.
"""

from __future__ import annotations

import math
import operator
import time

import numpy as np

import wayfare as wf
from wayfare.nn import functional as F


def new(seed, shape, dtype="float64", requires_grad=False):
    """A leaf with numbers that the seed decides."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape) if dtype == "int64" else rng.uniform(-1.5, 1.5, shape)
    return wf.from_numpy(np.asarray(values, dtype)).requires_grad_(requires_grad)


class Cube(wf.autograd.Function):
    """x³, with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Doubled(wf.autograd.Function):
    """Twice its input, in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class SumAndProduct(wf.autograd.Function):
    """Two results; the gradient of one of them may be missing."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx, by_sum, by_product):
        x, y = ctx.saved_tensors
        return (by_sum + by_product * y).sum_to_size(x.shape), (by_sum + by_product * x).sum_to_size(y.shape)


class Box:
    """A plain object that programs keep things in."""

    def __init__(self):
        self.total = 1.0
        self.kept = None


class Keeper:
    """An object with all that objects have; every world has a class of its own."""

    factor = 2.0

    def __init__(self):
        self.scale, self.count, self.last, self.items, self.inner = 1.0, 0, None, [], {}

    @property
    def scaled(self):
        return self.scale * self.factor

    def note(self, h):
        self.last = h
        self.count += 1
        return h * self.scaled

    def __call__(self, h):
        return h + self.scale

    def __len__(self):
        return len(self.items)

    def __setitem__(self, key, value):
        self.inner[key] = value

    def __str__(self):
        return f"keeper of {self.count}"


class Noting(wf.nn.Module):
    """A module that stores its activation and counts its calls."""

    def __init__(self):
        super().__init__()
        self.last, self.calls = None, 0

    def forward(self, h):
        self.last = h.tanh()
        self.calls += 1
        return self.last * 2


def counting(function, heard):
    """A function that notes its calls."""

    def call(*args, **kwargs):
        heard.append("called")
        return function(*args, **kwargs)

    return call


def doubled(function):
    """A function with twice the result."""
    return lambda *args: function(*args) * 2


def halving(p):
    """A hook that halves the gradient of a leaf."""
    p.grad.mul_(0.5)


def complaining(g):
    """A hook that does not like every gradient."""
    if g.sum() > 0.5:
        raise ValueError("too steep")


def softer(x, y):
    """A helper that programs call: an ordinary function with a branch on a value."""
    if x.mean() > 0.1:
        return x - y.tanh()
    return x + y.tanh()


@wf.fused
def blended(x, y):
    return (x * y).tanh() + x * 0.3


def rewriting(v):
    """Writes in place within a checkpointed segment."""
    out = v.sin()
    out.mul_(v)
    return out * v


NAMES = {
    "wf": wf, "F": F, "np": np, "time": time, "new": new, "Cube": Cube, "Doubled": Doubled,
    "SumAndProduct": SumAndProduct, "softer": softer, "helper": softer, "blended": blended,
    "rewriting": rewriting, "checkpoint": wf.checkpoint, "Keeper": Keeper, "counting": counting, "doubled": doubled,
    "complaining": complaining, "halving": halving, "math": math, "operator": operator,
}  # fmt: skip

UNARY = (
    "{a}.sin()", "{a}.tanh()", "{a}.sigmoid()", "({a} * 0.3).exp()", "{a}.relu()", "{a}.abs()", "{a}.square()",
    "{a}.neg()", "{a}.clamp(-0.7, 0.9)", "{a}.pow(3)", "{a}.mul(0.5)", "({a}.square() + 0.2).sqrt()",
    "({a}.abs() + 0.5).log()", "F.gelu({a})", "{a}.clone()", "1.0 / ({a}.abs() + 1)", "F.leaky_relu({a}, 0.2)",
    "2.0 - {a}", "F.softplus({a})", "{a}.sign() * {a}", "{a}.round()", "{a}.cos() * {a} + 1",
)  # fmt: skip

REDUCE = (
    "{a}.sum()", "{a}.mean()", "{a}.sum(0)", "{a}.sum(-1, keepdim=True)", "{a}.mean(-1)", "{a}.amax(0)",
    "{a}.var(0, correction=0)", "{a}.logsumexp(-1)", "{a}.norm()", "{a}.prod(-1)", "{a}.max(-1).values", "{a}.max()",
    "{a}.softmax(-1)", "{a}.log_softmax(0)", "{a}.cumsum(0)", "F.layer_norm({a}, {a}.shape[-1:])",
    "{a}.sort(-1).values", "F.normalize({a}, dim=-1)", "{a}.argmax(-1)", "{a}.min(0)[0]", "{a}.std()",
    "{a}.roll(1, 0)", "{a}.flip(0)", "{a}.tril()", "{a}.repeat_interleave(2, 0)", "{a}.repeat(2, *{a}.shape)",
    "({a} > 0).sum(0)", "{a}.topk(1).values",
)  # fmt: skip

BINARY = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.square() + 1)", "wf.maximum({a}, {b})",
    "wf.where({a} > {b}, {a}, {b})", "wf.where({a} > 0, {b}, 0.5)", "wf.addcmul({a}, {a}, {b}, value=0.7)",
    "2.0 - {a} * {b}", "{a}.lerp({b}.to({a}.dtype), 0.3)", "wf.atan2({a}, {b} + 3)", "softer({a}, {b})",
    "helper({a}, {b})", "blended({a}, {b})", "F.mse_loss(*wf.broadcast_tensors({a}, {b}))", "({a} * {b}).sum(-1)",
    "{a}.double() * {b}", "{a}.float() + {b}", "({a} > {b}) * {a}", "{a}.to({b}.dtype) + {b}",
)  # fmt: skip

MATMUL = (
    "{a} @ {b}", "{a} @ {a}.mT", "{a}.mT @ {a}", "{a}.reshape(-1) @ {a}.reshape(-1)", "{a} @ {a}[..., 0, :]",
    "F.linear({a}, {a}.reshape(-1, {a}.shape[-1])[:2])", "wf.einsum('...i,...j->...ij', {a}, {a})",
    "wf.outer({a}.reshape(-1)[:3], {a}.reshape(-1)[:2])",
    "F.linear({a}, {a}.reshape(-1, {a}.shape[-1])[:2], {a}.reshape(-1)[:2]).relu()",
    "(1.5 * {a} @ {a}.mT).softmax(-1) @ {a}",
)  # fmt: skip

VIEWS = (
    "{a}.unsqueeze(0)", "{a}.unsqueeze(-1)", "{a}.squeeze()", "{a}.view(-1)", "{a}[None]", "{a}[...]",
    "{a}.reshape(-1)", "{a}.detach()", "{a}.flatten()", "{a}.expand(2, *{a}.shape)", "{a}.transpose(0, -1)",
    "{a}.movedim(0, -1)", "{a}.mT", "{a}[..., 1:]", "{a}[:2]", "{a}[::2]", "{a}[0]", "{a}[-1]", "{a}[..., 0]",
    "{a}[:, None]", "{a}.select(0, 0)", "{a}.narrow(0, 0, 1)", "{a}.chunk(2, 0)[0]", "{a}.split(2)[-1]",
    "{a}.diagonal()", "{a}.unbind(0)[-1]", "{a}.tensor_split(2, -1)[0]", "{a}.contiguous()", "{a}.view({a}.shape)",
    "{a}.unflatten(0, (1, -1))", "{a}.to({a}.dtype)", "{a}[0, ..., -1:]", "{a}.view_as({a})", "{a}[1:, ..., None]",
    "{a}.unfold(0, 2, 1)", "{a}.data",
)  # fmt: skip

INDEX = (
    "{a}[{a} > 0.2]", "{a}[wf.tensor([0, -1])]", "{a}[..., wf.tensor([0, 0, -1])]", "{a}[{a}[..., 0] > 0]",
    "{a}.masked_select({a} > 0)", "{a}.index_select(0, wf.tensor([0, 0]))", "{a}.gather(0, {a}.detach().argsort(0))",
    "{a}.take(wf.tensor([0]))", "{a}[int({a}.abs().sum()) % len({a})]", "{a}[:int(({a} > 0).sum())]",
    "{a}[k % len({a})]", "{a}[{a}.detach().argsort(0, descending=True)[0]]", "{a}.nonzero().sum(0)",
    "{a}.detach().round().unique()", "{a}[wf.arange(len({a})), 0]", "{a}[{a}.argmax() % len({a})]",
    "{a}[:, wf.tensor([0])] * {a}[:1]", "{a}[[0, 0]]", "{a}[wf.randperm(len({a}))]",
)  # fmt: skip

JOIN = (
    "wf.cat([{a}, {a}])", "wf.stack([{a}, {a} * 2], -1)", "wf.stack({a}.unbind(0)[::-1])", "wf.cat([{a}, {b}], -1)",
    "wf.stack([{a}, {b}])", "wf.cat([{a}[:1], {a}, {a}[-1:]])", "wf.broadcast_tensors({a}, {b})[0]",
    "sum(row * (i + 1) for i, row in enumerate({a}))", "wf.stack([row.sum() for row in {a}])",
)  # fmt: skip

RANDOM = (
    "F.dropout({a}, 0.4, True)", "{a} * wf.rand_like({a})", "{a} + wf.randn({a}.shape)",
    "{a} * wf.bernoulli({a}.detach().sigmoid())", "wf.normal(0.0, 1.0, {a}.shape) - {a}",
    "wf.randint(0, 3, {a}.shape) * {a}", "{a}.detach().clone().uniform_()", "F.dropout({a} * {b}, 0.3, k == 2)",
    "F.rrelu({a}, training=True)",
)  # fmt: skip

# What is written in place: a tensor, or a part of it.
TARGETS = (
    "{a}", "{a}", "{a}", "{a}[0]", "{a}[..., 1:]", "{a}.view(-1)", "{a}.transpose(0, -1)", "{a}.diagonal()",
    "{a}[::2]", "{a}.detach()", "{a}.unsqueeze(0)", "{a}[-1:]", "{a}.data",
)  # fmt: skip

WRITES = (
    "{t}.add_({b})", "{t}.mul_({b})", "{t}.sub_({b}, alpha=0.3)", "{t}.copy_({b})",
    "{t}.addcmul_({b}, {b}, value=0.5)", "{t}.masked_fill_({t} > 0, 0.3)", "{t}.exp_()", "{t}.tanh_()", "{t}.relu_()",
    "{t}.clamp_(-0.5, 1)", "{t}.fill_(0.4)", "{t}.zero_()", "{t}.mul_(0.5)", "{t}.add_(1)", "{t}.add_({t})",
    "{t}.div_({b}.square() + 1)", "{a}[0] = {b}", "{a}[...] = 0.25", "{a}[..., 1:] = {a}[..., :1]",
    "{a}[{a} > 0.1] = 0.5", "{a}[wf.tensor([0])] = {b}", "{a}[0] += 1", "{a}[..., :1] *= {b}",
    "{t}.index_fill_(0, wf.tensor([0]), 0.5)", "{t}.sigmoid_()",
    "{a}.index_add_(0, wf.tensor([0, 0]), {a}[:1].detach().clone().expand(2, *{a}.shape[1:]))", "{t}.lerp_({b}, 0.2)",
    "Doubled.apply({a})", "{a}.scatter_(0, {a}.detach().argsort(0), 0.3)", "{t}.clamp_min_(0)", "{t}.normal_()",
    "{a}[int({b}.abs().sum()) % len({a})] = 0.1", "wf.add({a}, {b}, out={a})", "{a}.copy_({a}.detach().flip(0))",
)  # fmt: skip

CONTROL = (
    "if {a}.sum() > 0.1:\n    {n} = {b} * 2\nelse:\n    {n} = {b}.sin()",
    "if ({a} > 0).any() and k > 2:\n    {n} = {b} + 1\nelif {a}.max() > 0.7:\n    {n} = {b} - {a}\n"
    "else:\n    {n} = {b}",
    "{n} = {a}\ni = 0\nwhile {n}.abs().max() > 0.4 and i < 5:\n    {n} = {n} * 0.6\n    i += 1",
    "{n} = {a}\nfor _ in range(int({a}.abs().sum()) % 4):\n    {n} = ({n} * {b}).tanh()",
    "{n} = {a}\nfor i in range(k):\n    {n} = {n}.tanh() + i",
    "{n} = {b} * {a}.mean().item()",
    "{n} = {b} * settings['scale'] + k",
    "{n} = {b} if float({a}.reshape(-1)[0]) > 0 else {b}.exp()",
    "{n} = wf.tensor({a}.detach().tolist()) * {b}",
    "{n} = {b} + wf.tensor([float({a}.sum())])",
    "{n} = wf.from_numpy({a}.detach().numpy().copy()) * {b}",
    "{n} = {b} * 2 if {a}.requires_grad else {b} * 3",
    "{n} = {b} * ({a}.shape[0] if {a}.dim() else 1)",
    "try:\n    {n} = {a} @ wf.ones(97)\nexcept RuntimeError:\n    {n} = {b} * 3",
    "def near(t):\n    return (t * {b}).sin()\n{n} = near({a})",
    "{n} = {a}.clone()\nfor row in {n}:\n    {n}.mul_(0.9)",
    "{n} = {a}.clone()\nfor i in range(1, len({n})):\n    {n}[i] = {n}[i - 1].sin() + {a}[i]",
    "with wf.no_grad():\n    {n} = {a} * {b}",
    "with wf.no_grad():\n    with wf.enable_grad():\n        {n} = {a} * {b}",
    "{n} = {a} * ({b}.sum() > 0)\nif not wf.is_grad_enabled():\n    {n} = {n} + 1",
    "{n} = {a}\nif {a}.numel() > 6 and bool(({b} == {b}).all()):\n    {n} = {a} * int({b}.argmax())",
    "{n} = [{b}.sin(), {b}.cos()][int({a}.sum() > 0)]",
    "{n} = {b} + max(float({a}.max()), 0.0)",
    "{n} = {b} * round({a}.abs().mean().item(), 1)",
)

GRADIENTS = (
    "if {a}.requires_grad and {l}.requires_grad:\n    {n} = wf.autograd.grad({a}.square().sum(), [{l}], "
    "create_graph=True, allow_unused=True, materialize_grads=True)[0]\nelse:\n    {n} = {a}",
    "if {a}.requires_grad and {l}.requires_grad:\n    {n} = wf.autograd.grad({a}.sin().sum(), [{l}], "
    "retain_graph=True, allow_unused=True, materialize_grads=True)[0]\nelse:\n    {n} = {a}",
    "if {a}.requires_grad:\n    ({a} * {a}).sum().backward(retain_graph=True)",
    "{n} = {a}.detach().clone().requires_grad_()\n({n} * {n}).sin().sum().backward()\n{o} = {n}.grad * 2",
    "{n} = {a}.detach().requires_grad_()\n({n} * {b}.detach()).cos().sum().backward()\n{o} = {n}.grad",
    "if c1.grad is not None:\n    with wf.no_grad():\n        c1.sub_(c1.grad, alpha=0.01)\n    c1.grad = None",
    "if c1.requires_grad:\n    (c1.sin() * {a}.detach().mean()).sum().backward()\n    c1.grad.mul_(0.5)",
    "c1.grad = None",
    "{n} = c1.grad if c1.grad is not None else c1 * 2",
    "{n} = wf.func.grad(lambda t: (t.sin() * t).sum())({a}.detach())",
    "{n} = wf.func.vjp(lambda t: t.tanh() * t, {a}.detach())[1]({a}.detach())[0]",
    "{n} = wf.vmap(lambda t: t.tanh() * 2 + t.sum())({a})",
    "{n} = checkpoint(lambda t: (t * {b}.detach()).sin(), {a}, use_reentrant=False)",
    "{n} = checkpoint(rewriting, {a}.clone(), use_reentrant=False)",
    "{n} = Cube.apply({a})",
    "{n} = Cube.apply({a} + {b}) * {a}",
    "{n}, {o} = SumAndProduct.apply({a}, {b})",
    "{n} = SumAndProduct.apply({a}, {b})[0]",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: g * 2)",
    "{n} = {a}.detach().clone().requires_grad_()\nfor _ in range(2):\n    g, = wf.autograd.grad(({n} ** 3).sum(), "
    "{n})\n    {n} = ({n} - 0.05 * g).detach().requires_grad_()",
)

STATE = (
    "{n} = {b} * (2 if time.perf_counter() > 0 else 3)",
    "assert time.perf_counter() > 0",
    "assert time.perf_counter() > 0",
    "log.append(k)",
    "log.append(float({a}.sum()))",
    "log.append({a}.detach())",
    "log.append(tuple({a}.shape))",
    "{n} = {b} * (len(log) % 3)",
    "settings['calls'] = settings.get('calls', 0) + 1",
    "{n} = {b} * settings.get('calls', 0)",
    "{n} = {b} + box.total\nbox.total = box.total * 0.5 + 1",
    "box.kept = {a}.detach().mean()",
    "{n} = {b} if box.kept is None else {b} + box.kept",
    "with wf.no_grad():\n    c0.mul_(0.9).add_({a}.detach().mean())",
    "c0.add_(0.1)",
    "c0[0] = {a}.detach().sum().tanh()",
    "c1.data.mul_(0.99)",
    "{n} = {a} * c0.sum()",
    "{n} = {a} + c1.sum()",
    "{n} = c1 * 2",
)

TRAINING = (
    "{n} = net({a}.to(c0.dtype).reshape(-1, 3))",
    "{n} = net({a}.detach().to(c0.dtype).reshape(-1, 3)).square().mean()\n{n}.backward()",
    "opt.step()",
    "opt.zero_grad()",
    "opt.zero_grad(set_to_none=False)",
    "opt.zero_grad()\nnet({a}.detach().to(c0.dtype).reshape(-1, 3)).cos().sum().backward()\nopt.step()",
    "{n} = wf.nn.utils.clip_grad_norm_(net.parameters(), 0.5)",
    "wf.nn.utils.clip_grad_value_(net.parameters(), 0.1)",
    "net.eval()\n{n} = net({a}.to(c0.dtype).reshape(-1, 3))\nnet.train()",
    "w = net[1].weight\nif w.grad is not None:\n    with wf.no_grad():\n        w.sub_(w.grad, alpha=0.1)",
    "sched.step()",
    "{n} = sum(p.square().sum() for p in net.parameters())",
    "{n} = F.linear({a}.to(c0.dtype), net[1].weight).relu()",
    "with wf.no_grad():\n    for p in net.parameters():\n        p.mul_(0.99)",
    "{n} = opt.param_groups[0]['lr'] * {a}",
    "{n} = {a} * net[0].running_mean.sum()",
)
