"""Custom autograd Functions, and gradients inside a function."""

from tests.compiler.hostile.harness import family

own = family("autograd")

CUSTOM = """
q, log = 2.0, []
box = {{"q": 2.0}}
w = num(4, grad=True)
class Own(wf.autograd.Function):
    factor = 2.0
    @staticmethod
    def forward(ctx, x, n=1):
        {forward}
    @staticmethod
    def backward(ctx, *g):
        {backward}
@way
def f(x):
    {body}
"""
CHANGES = [
    "q = 5.0", "box['q'] = 7.0", "Own.factor = 9.0",
    "Own.backward = staticmethod(lambda ctx, *g: (g[0] * 11, None))",
    "Own.forward = staticmethod(lambda ctx, x, n=1: x * 13)", "w = num(4, seed=5, grad=True)", "w.data.mul_(2)",
]  # fmt: skip
for name, forward, backward, body in [
    ("global read in backward", "return x * 2", "return g[0] * q, None", "return Own.apply(x * w)"),
    ("dict read in backward", "return x * 2", "return g[0] * box['q'], None", "return Own.apply(x * w)"),
    ("class read in backward", "return x * 2", "return g[0] * Own.factor, None", "return Own.apply(x * w)"),
    ("value kept on ctx", "ctx.n = n\n        return x * n", "return g[0] * ctx.n, None", "return Own.apply(x * w, q)"),
    ("saved tensors", "ctx.save_for_backward(x)\n        return x ** 2",
     "return g[0] * 2 * ctx.saved_tensors[0] * q, None", "return Own.apply(x * w)"),
    ("captured tensor in backward", "return x * 2", "return g[0] * w.detach(), None", "return Own.apply(x * w)"),
    ("log in backward", "return x * 2", "log.append(1)\n        return g[0] * 2, None", "return Own.apply(x * w)"),
    ("log in forward", "log.append(n)\n        return x * 2", "return g[0] * 2, None", "return Own.apply(x * w, 3)"),
    ("state changed in backward", "return x * 2", "box['q'] += 1\n        return g[0] * box['q'], None",
     "return Own.apply(x * w)"),
    ("state set in forward", "box['n'] = x.shape[0]\n        return x * 2", "return g[0] * box['n'], None",
     "return Own.apply(x * w)"),
    ("two outputs", "return x * 2, x * 3", "return g[0] * q + g[1], None", "a, b = Own.apply(x * w)\n    return a, b"),
    ("an output without gradient", "y = x > 0\n        ctx.mark_non_differentiable(y)\n        return x * 2, y",
     "return g[0] * q, None", "a, b = Own.apply(x * w)\n    return a, b"),
    ("no gradient for the input", "return x * 2", "return None, None", "return Own.apply(x * w) + x"),
    ("branch in backward", "return x * 2", "return (g[0] * 2 if g[0].sum() > 0 else g[0] * q), None",
     "return Own.apply(x * w)"),
    ("written in place", "x.detach().mul_(2)\n        ctx.mark_dirty(x)\n        return x", "return g[0] * q, None",
     "y = x * w\n    return Own.apply(y)"),
    ("backward inside", "return x * 2", "return g[0] * q, None",
     "Own.apply(x * w).sum().backward()\n    return x.detach()"),
    ("grad inside", "ctx.save_for_backward(x)\n        return x ** 2", "return g[0] * ctx.saved_tensors[0] * q, None",
     "return wf.autograd.grad(Own.apply(x * w).sum(), w)"),
    ("needs_input_grad", "return x * 2", "return (g[0] * 2 if ctx.needs_input_grad[0] else None), None",
     "return Own.apply(x * w)"),
    ("error in backward", "return x * 2",
     "if q > 3:\n            raise ValueError('q')\n        return g[0] * 2, None", "return Own.apply(x * w)"),
    ("random in forward", "y = wf.rand(4)\n        ctx.save_for_backward(y)\n        return x * y",
     "return g[0] * ctx.saved_tensors[0], None", "return Own.apply(x * w)"),
    ("unused output", "return x * 2, x * 3",
     "log.append([None if t is None else t.sum().item() for t in g])\n        return g[0] * 2, None",
     "return Own.apply(x * w)[0]"),
]:  # fmt: skip
    reads = {"q": 0, "box": 1, "Own.factor": 2}
    picked = [CHANGES[i] for word, i in reads.items() if word in backward + body]
    picked += [CHANGES[3 + len(name) % 2], CHANGES[5 + len(body) % 2]]
    own(
        f"Function: {name}", CUSTOM.format(forward=forward, backward=backward, body=body), *picked,
        args="num(3, 4, seed=k, grad=True),", fails=True)  # fmt: skip
    own(
        f"Function, changed before backward: {name}", CUSTOM.format(forward=forward, backward=backward, body=body),
        args="num(3, 4, seed=k, grad=True),",
        after="q = float(k); box['q'] = k; Own.factor = 1.0 / k\nt = r[0] if isinstance(r, tuple) else r\n"
        "t.sum().backward() if t.requires_grad else 0", fails=True)  # fmt: skip

for name, body in [
    ("grad with create_graph", "g, = wf.autograd.grad((x * x * w).sum(), x, create_graph=True)\n    return g"),
    ("double backward inside",
     "g, = wf.autograd.grad((x ** 3 * w).sum(), x, create_graph=True)\n    g.sum().backward()\n"
     "    return g.detach()"),
    ("penalty",
     "y = (x * w).tanh().sum()\n    g, = wf.autograd.grad(y, x, create_graph=True)\n"
     "    return y + g.square().sum() * q"),
    ("two losses",
     "(x * w).sum().backward(retain_graph=True)\n    (x * w * q).sum().backward()\n    return w.grad.clone()"),
    ("retain_graph",
     "y = (x * w).exp().sum()\n    y.backward(retain_graph=True)\n    y.backward()\n    return w.grad.clone()"),
    ("retain_grad", "y = x * w\n    y.retain_grad()\n    (y * q).sum().backward()\n    return y.grad"),
    ("graph left half used", "y = (x * w).exp()\n    y.sum().backward(retain_graph=True)\n    return y"),
    ("inputs chosen", "(x * w * v).sum().backward(inputs=[w])\n    return w.grad.clone()"),
    ("gradient written", "(x * w).sum().backward()\n    w.grad.mul_(q)\n    return w.grad"),
    ("gradient replaced", "(x * w).sum().backward()\n    w.grad = w.grad * q\n    return w.grad"),
    ("leaf made inside", "z = x.detach().requires_grad_()\n    (z * w * q).sum().backward()\n    return z.grad, z"),
    ("detach in the middle",
     "y = (x * w).detach()\n    y.requires_grad_()\n    (y * v).sum().backward()\n    return y.grad"),
    ("requires_grad_ inside", "v.requires_grad_(q > 3)\n    return x * v"),
    ("grad set to none inside", "w.grad = None\n    (x * w).sum().backward()\n    return w.grad"),
    ("is_leaf read", "return x * (2 if (x * w).is_leaf else q)"),
    ("grad_fn read", "return x * w, (x * w).grad_fn is None"),
    ("history written", "y = x * w\n    y[0] = 0\n    return y"),
    ("history of a view written", "y = x * w\n    y[0].mul_(q)\n    return y"),
    ("write to a leaf", "with wf.no_grad():\n        w -= 0.1 * x.detach()[0]\n    return x * w"),
    ("write to a leaf refused", "w.mul_(2)\n    return x"),
    ("write to what is needed", "y = (x * w).exp()\n    z = y * y\n    y.add_(1)\n    return z"),
    ("copy_ into a buffer with history", "t = wf.zeros(3, 4)\n    t.copy_(x * w)\n    return t"),
    ("stack of gradients", "return wf.stack([wf.autograd.grad((row * w).sum(), w)[0] for row in x])"),
    ("hook that changes",
     "y = x * w\n    y.register_hook(lambda g: g * q)\n    y.sum().backward()\n    return w.grad.clone()"),
    ("jacobian", "return wf.autograd.functional.jacobian(lambda t: t.sin() * q, x.detach()[0])"),
]:  # fmt: skip
    own(
        name, f"w, v, q = num(4, grad=True), num(4, seed=1), 2.0\n@way\ndef f(x):\n    {body}\n",
        *["q = 5.0", "each: q = k * 0.5"] if "q" in body else [],
        *["w.grad = None", "w.grad = num(4)"] if "grad" in body else [],
        ("w = num(4, seed=5, grad=True)", "w.requires_grad_(False)"),
        *["v.requires_grad_()"] if "v" in body else [], args="num(3, 4, seed=k, grad=True),", fails=True)
