"""In company: compiled and fused functions, checkpoint, own Functions, vmap, threads, and one map after another."""

from tests.batch.scenarios.harness import family

scenario, case = family("company")

SETUP = """
w, lin, log = weight(3), mod(nn.Linear(3, 3)), []
@wf.compile
def com(x, w):
    return (x * w).tanh() + w
@wf.compile
def two(x, w):
    h = x * w
    return h.sin(), h.sum()
@wf.compile
def named(x, w):
    return {'a': x * w, 'b': x}
@wf.compile
def branch(x, w):
    return x * w if x.sum() > 0 else x - w
@wf.fused
def fus(x, w):
    return (x * w).tanh() + w
@wf.fused
def fus2(x, w):
    h = x * w
    return h.sin(), h * 2
class Double(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * 10, g * x * 10
class Pair(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2, x * 3
    @staticmethod
    def backward(ctx, a, b):
        return a * 2 + b * 3
from wayfare.utils.checkpoint import checkpoint
"""
for name, body in {
    "compiled": "return com(x, w)",
    "compiled twice": "return com(com(x, w), w)",
    "compiled, two outputs": "return two(x, w)",
    "compiled, one of two outputs": "a, b = two(x, w)\nreturn b",
    "compiled, dict": "return named(x, w)",
    "compiled, by value": "return branch(x, w)",
    "compiled, then a look": "a, b = two(x, w)\nreturn a if b > 0 else b",
    "compiled, weight written between": "a = com(x.detach(), w.detach())\nw.data.mul_(2)\n"
        "return a, com(x.detach(), w.detach())",
    "compiled, own leaf": "z = x.detach().requires_grad_()\nreturn com(z, w), z",
    "compiled, backward inside": "com(x, w).sum().backward()\nreturn x.grad",
    "compiled, no_grad": "with wf.no_grad():\n    return com(x, w)",
    "compiled module": "return wf.compile(lin)(x)",
    "fused": "return fus(x, w)",
    "fused, two outputs": "return fus2(x, w)",
    "fused, one of two outputs": "return fus2(x, w)[1]",
    "fused, same twice": "a, b = fus2(x, w)\nreturn a, a, b",
    "fused, other shapes": "return fus(x[: i % 2 + 1], w[: i % 2 + 1])",
    "fused, written after": "a, b = fus2(x, w)\na.add_(1)\nreturn a, b",
    "fused, backward inside": "fus(x, w).sum().backward()\nreturn w.grad.clone()",
    "function": "return Double.apply(x, w)",
    "function of a result": "return Double.apply(x * 2, w) + 1",
    "function, two outputs": "return Pair.apply(x * w)",
    "function, one of two outputs": "return Pair.apply(x * w)[0]",
    "function, by value": "return Double.apply(x, w) if x.sum() > 0 else x * w",
    "checkpoint": "return checkpoint(lambda a: (a * w).tanh(), x, use_reentrant=False)",
    "checkpoint of a module": "return checkpoint(lin, x * 2, use_reentrant=False)",
    "checkpoint with a look": "return checkpoint(lambda a: a * w if a.sum() > 0 else a - w, x, use_reentrant=False)",
    "vmap": "return wf.vmap(lambda a: a * w)(x[:, None] * w)",
    "vmap of linear": "return wf.vmap(lin)(wf.stack([x, x * 2]))",
    "func.grad": "return wf.func.grad(lambda a: (a * w).sin().sum())(x)",
    "func.grad of w": "return wf.func.grad(lambda a: (a * x).sin().sum())(w.detach())",
    "func.vjp": "y, back = wf.func.vjp(lambda a: a * w, x)\nreturn y, back(y.detach())",
    "func.jvp": "return wf.func.jvp(lambda a: (a * 2).sin(), (x.detach(),), (w.detach(),))",
    "func.jacrev": "return wf.func.jacrev(lambda a: a * w)(x)",
    "func.hessian": "return wf.func.hessian(lambda a: (a ** 3).sum())(x)",
    "functional_call": "return wf.func.functional_call(lin, {'weight': lin.weight * 2, 'bias': lin.bias}, (x,))",
    "saved_tensors_hooks": "with wf.autograd.graph.saved_tensors_hooks(lambda t: log.append(1) or t, lambda t: t):\n"
        "    y = x * w\nreturn y",
    "thread inside": "import threading\nout = []\n"
        "t = threading.Thread(target=lambda: out.append((wf.ones(3).double() * 2).sum().item()))\n"
                     "t.start()\nt.join()\nreturn x * out[0]",
    "thread that reads x": "import threading\nh, out = x * w, []\n"
        "t = threading.Thread(target=lambda: out.append(x.detach().sum().item()))\n"
                           "t.start()\nt.join()\nreturn h * out[0]",
    "gc inside": "import gc\nh = x * w\ngc.collect(0)\nreturn h",
    "time and random of Python": "import random\nr = random.Random(i).random()\nreturn x * r",
    "with a context manager": "@contextlib.contextmanager\ndef c():\n    log.append('in')\n    yield x * w\n"
        "    log.append('out')\nwith c() as h:\n    h = h * 2\nreturn h",
    "with a context manager and a look": "@contextlib.contextmanager\ndef c():\n    log.append(('in', i))\n"
        "    yield x * w\n    log.append(('out', i))\n"
                                         "with c() as h:\n    h.sum().item()\nreturn h",
    "contextvars": "import contextvars\nv = contextvars.ContextVar('v', default=0)\nv.set(i)\n(x * w).sum().item()\n"
        "return v.get()",
    "global mode by with": "with wf.autograd.set_grad_enabled(i % 2 == 0):\n    h = x * w\n    h.sum().item()\n"
        "    k = x * w\nreturn h, k",
    "anomaly mode": "with wf.autograd.detect_anomaly():\n    h = x * w\nreturn h",
    "fork_rng": "with wf.fork_rng():\n    wf.manual_seed(1)\n    r = wf.rand(3)\nreturn x * r",
    "print options": "return repr((x.detach() * 2).round())",
    "warnings": "import warnings\nwith warnings.catch_warnings(record=True) as c:\n"
        "    warnings.simplefilter('always')\n    warnings.warn('a')\nreturn len(c), x * w",
    "module made and called": "m = mod(nn.Linear(3, 2), 10)\nreturn m(x)",
    "shared module made by the first": "if not log:\n    log.append(mod(nn.Linear(3, 2), 10))\nreturn log[0](x)",
    "eval exec": "return eval('x * w', {'x': x, 'w': w})",
    "np.testing": "np.testing.assert_allclose((x * 1).detach().numpy(), x.detach().numpy())\nreturn x",
    "lerp chain of many": "for _ in range(30):\n    x = x * w * 0.5 + 0.1\nreturn x",
    "stats asked": "x * w\nreturn wf.batching.last() is None or True",
}.items():  # fmt: skip
    case(name, SETUP, body, "w, lin, log", random="rng" in name)

OUTER = "w, log = weight(3), []\nxs = [vecs(3, start=3 * k) for k in range(3)]\n"
for name, setup, body in [
    ("map fed to a map", "", "h = wf.map(lambda a: a * w, x)\nreturn wf.map(lambda a: a.tanh() * w, h)"),
    ("map fed to a sum", "", "return sum(wf.map(lambda a: (a * w).sum(), x))"),
    ("map, then backward", "", "wf.stack(wf.map(lambda a: (a * w).sum(), x)).sum().backward()\nreturn None"),
    ("map, each backward", "", "for r in wf.map(lambda a: (a * w).tanh().sum(), x):\n    r.backward()\n"
     "return w.grad.clone()"),
    ("two maps of one graph", "base = (w * 2).tanh()\n", "return wf.map(lambda a: a * base, x)"),
    ("map in a compiled function", "@wf.compile\ndef c(a, b):\n"
     "    return wf.stack(wf.map(lambda t: t * w, [a, b])).sum(0)\n", "return c(x[0], x[1])"),
    ("compiled function in a map in a map", "@wf.compile\ndef c(a):\n    return (a * w).tanh()\n",
     "return wf.map(c, x)"),
    ("map of a block", "", "with wf.batching():\n    return wf.map(lambda a: a * w, x)"),
    ("block in a map with a look", "", "with wf.batching():\n    h = [a * w for a in x]\n    s = h[0].sum().item()\n"
     "return h, s"),
    ("map with other options", "", "return wf.map(lambda a: a * w, x, schedule=wf.batching.ByDepth(), limit=10)"),
    ("map as a loop", "", "return wf.map(lambda a: a * w if a.sum() > 0 else a, x, batch=False)"),
    ("map of examples that write", "t = wf.zeros(3).double()\n",
     "wf.map(lambda a: (t.add_(a.detach()), None)[1], x[:1])\nreturn t.clone()"),
    ("map of nothing", "", "return wf.map(lambda a: a * w, [])"),
    ("map kept for later", "", "log.append(wf.map(lambda a: a * w, x))\nreturn log[-1][0] * 2"),
]:  # fmt: skip
    case(name, OUTER + setup, body, "w, log")


def whole(name, lines):
    """A scenario that is one example: what a few lines do with maps of their own."""
    inner = "\n".join("    " + line for line in lines.split("\n"))
    case(name, OUTER + f"xs = vecs()\ndef f(_):\n{inner}\nits = [[0]]", None, "w, log", without="no_grad, alone")


for name, lines in {
    "results of a map, kept graph": "r = wf.map(lambda x: (x * w).tanh(), xs)\n"
        "sum(t.sum() for t in r).backward(retain_graph=True)\n"
                                    "a = w.grad.clone()\nsum(t.sum() for t in r).backward()\nreturn a, w.grad",
    "gradients kept across maps": "for _ in range(3):\n    sum(wf.map(lambda x: (x * w).sum(), xs)).backward()\n"
        "return w.grad",
    "one map fed to the next": "h = wf.map(lambda x: x * w, xs)\nk = wf.map(lambda a, b: a * b + w, h, h[::-1])\n"
        "return k",
    "results written, then another map": "h = wf.map(lambda x: x.detach() * 2, xs)\nh[0].zero_()\n"
        "return wf.map(lambda a: a + 1, h)",
    "same function, other shapes": "f = lambda x: x * 2\n"
        "return wf.map(f, xs), wf.map(f, [x[:2] for x in xs]), wf.map(f, xs)",
    "training": "opt = wf.optim.SGD([w], lr=0.1)\nfor _ in range(3):\n    opt.zero_grad()\n"
        "    sum(wf.map(lambda x: ((x * w) ** 2).sum(), xs)).backward()\n    opt.step()\nreturn w.detach()",
    "weight written between maps": "a = wf.map(lambda x: x.detach() * w, xs)\nw.data.mul_(2)\n"
        "return a, wf.map(lambda x: x.detach() * w, xs)",
    "error, then another map": "try:\n    wf.map(lambda x: x[7], xs)\nexcept IndexError:\n    pass\n"
        "return wf.map(lambda x: x * w, xs)",
    "maps in threads": "import concurrent.futures as c\nwith c.ThreadPoolExecutor(2) as p:\n"
        "    fs = [p.submit(wf.map, lambda x: (x * w).tanh(), xs) for _ in range(2)]\n"
                       "    return [r.result() for r in fs]",
}.items():  # fmt: skip
    whole("whole, " + name, lines)
