"""Statements of random programs that leave something behind: in tensors that all examples see, in totals, in hooks,
in gradients. And what can go wrong in some examples and is lived with: errors that are caught, NaN, early exits.

As in `program_parts`, `{a}` and `{b}` are tensors, `{n}` is a new name for one. `{c}` is a condition. Statements marked
as those of vectors need tensors as wide as all others; the rest take tensors of any shape.
"""

import numpy as np

import wayfare as wf
from wayfare import nn


class Counting(nn.Module):
    """A module that counts its calls and keeps a running mean, both in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", wf.tensor(0))
        self.register_buffer("mean", wf.tensor(0.0, dtype=wf.float64))

    def forward(self, x):
        self.calls.add_(1)
        with wf.no_grad():
            self.mean.mul_(0.9).add_(x.mean() * 0.1)
        return x * 0.5 + self.mean.to(x.dtype)


class Quiet(nn.Module):
    """A module with an attribute that its forward sets."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * 2


class Totals:
    """An object that examples add to."""

    def __init__(self):
        self.sum, self.count = 0.0, 0


def closure():
    """A function that adds to a number it closes over, and one that tells it."""
    total = 0.0

    def add(h):
        nonlocal total
        total += h.sum().item()

    return add, lambda: total


class Things:
    """What all examples of a world see and may change."""

    def __init__(self, seed, width, dtype, grads=True):
        rng = np.random.default_rng(seed + 1)
        kind = getattr(wf, dtype)

        def new(*shape):
            return wf.from_numpy(np.asarray(rng.uniform(-1, 1, shape), dtype)).to(wf.get_default_device())

        self.s0, self.s1, self.s2 = new(width), new(3, width), new(width)
        self.row, self.turned = self.s1[1], self.s1.mT
        self.p0 = nn.Parameter(new(width), requires_grad=grads)
        self.lin = nn.Linear(width, width).to(kind)
        with wf.no_grad():
            self.lin.weight.copy_(new(width, width))
            self.lin.bias.copy_(new(width))
        self.hooked = nn.Linear(width, width).to(kind)
        with wf.no_grad():
            self.hooked.weight.copy_(new(width, width))
            self.hooked.bias.copy_(new(width))
        self.hist, self.counter = wf.zeros(width), wf.tensor(0)
        self.counting, self.quiet, self.totals, self.tally = Counting(), Quiet(), Totals(), {}
        self.add, self.added = closure()
        self.hooked.register_forward_hook(self._heard)
        self.leaves = [self.p0, *self.lin.parameters(), *self.hooked.parameters()]

    def _heard(self, module, args, out):
        self.hist.add_(0.5)
        return out * 1.5

    def names(self):
        """What programs may name."""
        given = ("s0", "s1", "s2", "row", "turned", "p0", "lin", "hooked", "hist", "counter", "counting", "quiet",
                 "totals", "tally", "add")  # fmt: skip
        # Free programs take these by their own kind of name.
        return {name: getattr(self, name) for name in given} | {"c2": self.s1, "c3": self.p0, "grand": 0.0}

    def tensors(self):
        """All of these tensors."""
        buffers = [self.counting.calls, self.counting.mean]
        return [self.s0, self.s1, self.s2, self.row, self.turned, self.hist, self.counter, *buffers, *self.leaves]

    def numbers(self, names):
        """All of these numbers; real ones are sums, in any order."""
        tally = [float(self.tally[key]) for key in sorted(self.tally, key=str)]
        counts = [float(self.totals.count), float(self.quiet.steps)]
        return [*counts, self.totals.sum, self.added(), names["grand"], *tally]


# Ways of reading what others may have written, for vectors.
READS = (
    "s0", "s1[1]", "row", "p0", "s1.sum(0)", "turned[:, 0]", "s0.mean()", "counter", "w[0]", "counting.mean", "hist",
    "counting.calls", "p0.detach()", "s2", "float(s0.sum())", "lin({a})", "hooked({a})", "counting({a})", "e.shared",
    "table[e.k]", "b", "quiet({a})", "s2.detach()", "p0[0]", "s0[e.k % d]",
)  # fmt: skip

CONDITIONS = (
    "{a}.sum() > 0", "e.index == 1", "e.k > 1", "e.index % 2", "s0.sum() > 0.3", "float({a}.max()) > 0.4",
    "counter > 1", "e.index > 0 and {b}.mean() < 0", "({a} > 0.1).any()", "e.index == 0", "p0.sum() < {a}.sum()",
)  # fmt: skip

# Writes for vectors.
WRITES = (
    "s0.add_({a}.detach())", "s0[e.k % d] += 1", "s0[int({a}.argmax())] += 1", "s0[{a}.argmax()] += 0.5",
    "s1[e.index % 3] = {a}.detach()", "s1[1].mul_(0.5)", "row.add_(0.25)", "turned[0].sub_(0.1)",
    "s1.data.mul_(0.9)", "p0.data.add_({a}.detach(), alpha=0.1)", "with wf.no_grad():\n    p0.sub_({a} * 0.1)",
    "with wf.no_grad():\n    w.mul_(0.9)", "w.data.mul_(0.95)", "with wf.no_grad():\n    p0[0] = 0.5",
    "s0.index_put_((wf.tensor([0, 1]),), {a}.detach()[:2], accumulate=True)",
    "s0.index_add_(0, wf.tensor([0, 0]), {a}.detach()[:2])", "s0.index_put_((wf.tensor([e.k % d]),), {a}.detach()[:1])",
    "counter.add_(1)", "s0.copy_({a}.detach())", "s0.lerp_({b}.detach(), 0.3)", "s0.clamp_(-0.5, 0.5)", "s0.zero_()",
    "s1[0, e.k % d] = {a}.sum().item()", "table.data[e.k] += {a}.detach()", "e.shared.data.add_(0.1)",
    "e.x.data.mul_(0.9)", "wf.add(s0, 1, out=s0)", "s0.normal_()", "s1.scatter_(0, wf.tensor([[e.k % 3]]), 0.25)",
    "s0[{a}.detach() > 0] = 0.25", "s0[1:] = {a}.detach()[1:]", "s1.view(-1)[1] = {b}.detach().sum()",
    "lin.weight.data.mul_(0.9)", "with wf.no_grad():\n    lin.bias.add_({a}.detach())", "counting.mean.zero_()",
    "s0.data = s0.data * 0.5", "s0.mul_(s0)", "s0.add_(p0.detach())", "hist[int({a}.argmin())] += 1",
    "s1[wf.tensor([0, 2])] += {a}.detach()", "s0.detach().mul_(0.8)", "s0.numpy()[0] += 1", "s2.add_({a})",
    "s2[0] = {a}.sum()", "s2.mul_({b})", "s1[:, 0].fill_(0.5)", "nn.init.ones_(s0)",
    "with wf.no_grad():\n    b.copy_({a})", "with wf.no_grad():\n    for p in lin.parameters():\n        p.mul_(0.9)",
    "counter[...] = e.k", "s0[e.k % d], s0[0] = s0[0].clone(), 0.1",
)  # fmt: skip

# Whole statements of other kinds, for vectors.
VECTORS = (
    # totals
    "totals.sum += {a}.sum().item()\n{n} = {b}", "totals.count += int({a}.sum() > 0)\n{n} = {b}",
    "tally['all'] = tally.get('all', 0.0) + {a}.mean().item()\n{n} = {a}",
    "tally.setdefault('x', 0.0)\ntally['x'] += float({a}.max())\n{n} = {b}", "add({a})\n{n} = {a} + {b}",
    "def more_{n}():\n    global grand\n    grand += {a}.sum().item()\nmore_{n}()\n{n} = {b}",
    "tally[e.index] = {a}.sum().item()\n{n} = {a}",
    # hooks
    "handle = lin.register_forward_hook(lambda m, i, o: o * 2)\n{n} = lin({a})\nhandle.remove()",
    "handle = lin.register_forward_pre_hook(lambda m, i: (i[0] + 1,))\n{n} = lin({a}) * {b}\nhandle.remove()",
    "{n} = {a} * 2\nif {n}.requires_grad:\n    {n}.retain_grad()\nkept.setdefault(e.index, []).append({n})",
    "{n} = {a} * {b}\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: g.clamp(-1, 1))",
    "{n} = {a} * {b}\nif {n}.requires_grad:\n    {n}.register_hook(lambda g, h={a}: g * h.detach())\n{n} = {n} + {a}",
    "{n} = {a} * {b}\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: s2.data.add_(1) and None)",
    "if {c} and p0.requires_grad:\n    p0.register_hook(lambda g: g * 0.5)\n{n} = {a} * p0",
    "if e.x.requires_grad:\n    e.x.register_hook(lambda g: g * 0.5)\n{n} = {a} * e.x",
    # errors by value
    "try:\n    {n} = F.embedding(wf.tensor([e.k * 7]), table)[0] * {a}\nexcept (IndexError, RuntimeError):\n"
    "    {n} = {b}",
    "try:\n    {n} = table[wf.tensor([e.k * 7])][0] + {a}\nexcept (IndexError, RuntimeError):\n    {n} = {b} * 2",
    "try:\n    {n} = {a}.gather(0, wf.tensor([e.k])) * {b}\nexcept (IndexError, RuntimeError):\n    {n} = {b}.sin()",
    "try:\n    {n} = wf.linalg.cholesky({a}.outer({a}) + {b}.sum() * wf.eye(d, dtype={a}.dtype))[0]\n"
    "except RuntimeError:\n    {n} = {a}",
    "try:\n    {n} = {a} * F.cross_entropy({b}, wf.tensor(e.k + d - 3))\nexcept (IndexError, RuntimeError):\n"
    "    {n} = {a} * 2\nfinally:\n    counter.add_(1)",
    "try:\n    {n} = {a}[int({b}.abs().sum() * 2)] * {a}\nexcept IndexError:\n    {n} = {b}\n"
    "finally:\n    {n} = {n} + 1",
    "try:\n    {n} = {a} * 2\n    if {a}.sum() > 0.3:\n        raise KeyError('own')\n    {n} = {n} + s0\n"
    "except KeyError:\n    s0.add_(0.1)",
    "try:\n    {n} = {a} + table[int({b}.sum() * 9)]\nexcept IndexError:\n    {n} = {a}\nelse:\n    {n} = {n} * {b}",
    "try:\n    {n} = {a} * s0.index_select(0, wf.tensor([e.k]))\nexcept (IndexError, RuntimeError):\n    {n} = {a}",
    "try:\n    s0.index_add_(0, wf.tensor([e.k]), {a}.detach()[:1])\nexcept (IndexError, RuntimeError):\n"
    "    s0.mul_(0.5)\n{n} = {a} * s0",
    "try:\n    {n} = {a} * int({b}.log().sum())\nexcept (ValueError, OverflowError, RuntimeError):\n"
    "    {n} = {b} + 0.5",
    "try:\n    {n} = wf.linalg.inv({a}.outer({a}) * (e.k % 2) + wf.eye(d, dtype={a}.dtype) * (e.k % 2))[0]\n"
    "except RuntimeError:\n    {n} = {b}",
    "{n} = {a}\ntry:\n    dropped = F.embedding(wf.tensor([e.k * 7]), table)\nexcept (IndexError, RuntimeError):\n"
    "    {n} = {a} - {b}",
    # NaN and infinity, dropped or kept
    "dropped = {a}.sqrt() * {b}\n{n} = {a}", "{n} = {a}.sqrt()", "{n} = {a}.log().nan_to_num(0.5, 0.5, 0.5)",
    "dropped = 1 / ({a} - {a})\n{n} = {b}", "{n} = wf.where({a} > 0, {a}.sqrt(), {b})",
    "{n} = {a}.sqrt()\nif {n}.isnan().any():\n    {n} = {b} * 2", "{n} = {a}.clamp(min=0).log().clamp(min=-3)",
    "{n} = {a} / (e.k % 2)", "{n}, dropped = {b} * 2, ({a} * 0).log()", "{n} = ({a}.abs() * 400).exp() * 0 + {b}",
    "both = wf.stack([{a}.log(), {b}])\n{n} = both[1]", "{n} = {a}.sqrt()\n{n} = {n}[{n} == {n}].sum() + {b}",
    "low, high = ({a} / ({b} * (e.k % 2))).sort().values[:1], {b}.max()\n{n} = {b} + high",
    # gradients inside
    "{n} = {a}.detach().clone().requires_grad_()\ng, = wf.autograd.grad(({n} * p0).sin().sum(), [{n}])\n{n} = {b} + g",
    "{n} = {a}.detach().clone().requires_grad_()\ng, = wf.autograd.grad(({n} ** 2 * {b}).sum(), [{n}], "
    "create_graph=True)\n{n} = {a} * g",
    "own = wf.tensor({a}.tolist(), dtype=w.dtype, requires_grad=True)\nfor _ in range(1 + e.k % 2):\n"
    "    g, = wf.autograd.grad(((own - s0) ** 2).sum(), [own])\n    with wf.no_grad():\n        own -= 0.1 * g\n"
    "{n} = {b} + own.detach()",
    "own = nn.Parameter({a}.detach().clone())\n(own * own * 0.5).sum().backward()\n{n} = {b} * own.grad",
    "lin.zero_grad()\nlin({a}.detach()).square().sum().backward()\n{n} = {b} * lin.bias.grad",
    "lin(s0).sum().backward()\nwith wf.no_grad():\n    lin.bias.sub_(lin.bias.grad, alpha=0.01)\n{n} = lin({a})",
    "if {c}:\n    (p0 * {a}.detach()).sum().backward()\n{n} = {a} if p0.grad is None else {a} + p0.grad\n"
    "if e.k == 2:\n    p0.grad = None",
    "{n} = {a} * p0\nif {n}.requires_grad:\n    {n}.sum().backward(retain_graph=True)\n    p0.grad = None",
    "opt = wf.optim.SGD(lin.parameters(), lr=0.05)\nopt.zero_grad()\nlin({a}.detach()).square().mean().backward()\n"
    "opt.step()\n{n} = lin({b})",
    # flips
    "if {c}:\n    p0.requires_grad_(not p0.requires_grad)\n{n} = {a} * p0",
    "own = {a}.detach().clone()\nmade = own * 2\nown.requires_grad_()\n{n} = made + own * {b}",
    "lin.requires_grad_(e.k > 1)\n{n} = lin({a})", "own = {a}.detach()\nown.requires_grad_({c_bool})\n{n} = own * {b}",
    # strides
    "kept.setdefault(e.index, []).append((wf.stack([{a}, {b}]).mT * 2).tanh())\n{n} = {a}",
    "m_{n} = {a}.outer({b}).mT.exp() + s1.mT[:, :1]\nkept.setdefault(e.index, []).append(m_{n})\n{n} = m_{n}.sum(1)",
    "m_{n} = {a}.view(1, -1, 1).expand(2, -1, 3).permute(2, 0, 1) * 2\n{n} = {b} * m_{n}.stride()[0] + m_{n}[0, 0]",
    "m_{n} = e.m.mT + {a}[:, None]\nkept.setdefault(e.index, []).append(m_{n})\n{n} = m_{n}[:, 0]",
    "m_{n} = (e.m * {a}).mT\n{n} = m_{n}.reshape(-1)[: d] * (2 if m_{n}.is_contiguous() else 3)",
)  # fmt: skip

# Ways out of a program or a loop, for vectors.
RETURNS = ("if {c}:\n    return {a}", "if {a}.sum() > 0.5:\n    s0.add_(0.1)\n    return {b}",
           "if {a}.mean() < -0.2:\n    return {a} * s0")  # fmt: skip
LEAVES = ("if {c}:\n    break", "if {a}.sum() > 0.4:\n    break",
          "if {b}.mean() < -0.1:\n    counter.add_(1)\n    break")  # fmt: skip
SKIPS = ("if {c}:\n    continue", "if {a}.sum() > 0.4:\n    continue")
# Places inside a loop that ends by itself, where a loop may be left; where a result is only a vector.
IN_LOOPS = {("sequence", "step"), ("states", "step"), ("graph", "cell"), ("beam", "step"), ("block", "step")}
BREAKS = IN_LOOPS | {("halting", "step")}
VECTOR_PLACES = {("tree", "leaf"), ("tree", "cell"), ("nested", "step")}

# Statements for tensors of any shape, in free programs.
FREE = (
    "s0.add_({a}.detach().mean())", "if {c}:\n    s0.mul_(0.5)", "{n} = {a} * s0.sum()", "{n} = {a} + counter",
    "with wf.no_grad():\n    p0.sub_({a}.mean() * 0.1)", "{n} = {a} * p0.sum()", "counter.add_(1)",
    "if {c}:\n    s1[k % 3] += {a}.detach().mean()", "{n} = counting({a})", "row.add_(0.1)",
    "{n} = {a} + row.sum() * turned[0, 1]", "totals.sum += {a}.sum().item()", "tally['f'] = tally.get('f', 0) + "
    "{a}.mean().item()", "add({a})", "{n} = {a} * 2\nif {n}.requires_grad:\n    {n}.retain_grad()\n"
    "kept.setdefault(e.index, []).append({n})", "kept.setdefault(e.index, []).append({a})",
    "if {c}:\n    p0.requires_grad_(not p0.requires_grad)", "s2.add_({a}.mean())", "{n} = {a} * s2.sum()",
    "s0.data = s0.data * 0.5", "try:\n    {n} = {a}[int({b}.abs().sum() * 2)]\nexcept (IndexError, RuntimeError):\n"
    "    {n} = {a} * 2", "try:\n    {n} = {a} + table[wf.tensor([k * 7])].sum()\nexcept (IndexError, RuntimeError):\n"
    "    {n} = {b}", "{n} = {a}.sqrt()", "dropped = {a}.log() / ({b} - {b})", "{n} = wf.where({a} > 0, {a}.log(), {a})",
    "if {a}.requires_grad:\n    {a}.sum().backward(retain_graph=True)\n    {n} = {a} if c1.grad is None else {a} + "
    "c1.grad.sum()\nelse:\n    {n} = {a}", "c1.grad = None", "lin.zero_grad()\nlin(s0 * {a}.detach().mean()).sum()"
    ".backward()\n{n} = {a} + lin.weight.grad.sum()", "{n} = hooked(s0 * {a}.mean())", "if e.index == 1:\n    "
    "w.data.mul_(0.9)", "{n} = {a} * w.sum()", "{n} = ({a}.transpose(0, -1) * 2).exp().clamp(max=3)",
    "{n} = {a}.mT.tanh() + 1", "{n} = {a}.movedim(0, -1).sigmoid()", "if {a}.sum() > 0.3:\n    return {b}",
    "if {c}:\n    return {a}", "if e.x.requires_grad:\n    e.x.register_hook(lambda g: g * 0.5)", "quiet({a})",
)  # fmt: skip
# Conditions for tensors of any shape.
FREE_CONDITIONS = (
    "{a}.sum() > 0", "e.index == 1", "k > 1", "e.index % 2", "s0.sum() > 0.3", "({a} > 0.1).any()", "counter > 1",
    "float({b}.mean()) < 0.1", "p0.sum() < {a}.sum()",
)  # fmt: skip


def effect(draw, a, b, n):
    """A statement for vectors `a` and `b` that leaves something behind, and gives `n`."""
    fill = {"a": a, "b": b, "n": n}
    condition = draw.choice(CONDITIONS).format(**fill)
    if draw.random() < 0.5:
        return draw.choice(VECTORS).format(**fill, c=condition, c_bool=f"bool({condition})")
    write = draw.choice(WRITES).format(**fill)
    if draw.random() < 0.5:
        inner = write.replace("\n", "\n    ")
        write = f"if {condition}:\n    {inner}"
    before, after = (draw.choice(READS).format(**fill) for _ in "ab")
    first = f"{n} = {a} + {before}\n" if draw.random() < 0.5 else ""
    then = f"\n{n} = {n if first else b} * {after}" if draw.random() < 0.7 or not first else ""
    return first + write + then


def way_out(draw, form, place, a, b):
    """A statement that may leave a loop or the program; None where there is no way out."""
    ways = []
    if place == "body" or (form, place) in VECTOR_PLACES:
        ways += RETURNS
    if (form, place) in BREAKS:
        ways += LEAVES
    if (form, place) in IN_LOOPS:
        ways += SKIPS
    if not ways:
        return None
    condition = draw.choice(CONDITIONS).format(a=a, b=b)
    return draw.choice(ways).format(a=a, b=b, c=condition)
