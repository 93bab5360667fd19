"""NumPy memory, random numbers, results that are kept, and calls of other kinds."""

from tests.compiler.hostile.harness import family

case = family("numpy")

case("captured array through from_numpy", """
a = np.ones(3)
@way
def f(x):
    return x * wf.from_numpy(a)
""",
    "a[0] = 5", "a.fill(3.0)", "a = np.full(3, 7.0)", "a = a.astype(np.float32)", "a = np.ones(6)[::2]",
    "each: a[k % 3] += 1", args="num(3, seed=k, grad=True),")  # fmt: skip

case("captured tensor of an array", """
a = np.ones(3)
t = wf.from_numpy(a)
@way
def f(x):
    return x * t
""",
    "a[0] = 5", "a *= 3", "t = wf.from_numpy(a[::-1].copy())", "each: a[k % 3] += 1",
    args="num(3, seed=k, grad=True),")  # fmt: skip

case("captured tensor of an array written", """
a = np.ones(3)
t = wf.from_numpy(a)
@way
def f(x):
    t.add_(x.detach())
    return t * 2
""", "a[0] = 5", "t = wf.from_numpy(a)", "t = wf.from_numpy(a[:3])", args="num(3, seed=k, grad=True),")

case("two tensors of one array", """
a = np.ones(6)
t, u = wf.from_numpy(a[:3]), wf.from_numpy(a[3:])
@way
def f(x):
    t.add_(1)
    u.mul_(2)
    return x * t * u
""",
    "u = wf.from_numpy(a[2:5])", "t = wf.from_numpy(a[:3]); u = t", "u = wf.from_numpy(a[:3])", "a[:] = 3",
    args="num(3, seed=k, grad=True),")  # fmt: skip

case("array as an argument", """
a = np.ones(3)
@way
def f(x, b=None):
    return x * wf.from_numpy(a if b is None else b)
""", "a[0] = 5", "a = np.zeros(3)", args="num(3, seed=k, grad=True),")

case("array read as a number", """
a = np.ones(3)
@way
def f(x):
    return x * float(a[1]) if a[0] < 3 else x
""", "a[1] = 5", "a[0] = 5", "each: a[1] = k", args="num(3, seed=k, grad=True),")

case("array of objects", """
a = np.array([2.0, None], dtype=object)
@way
def f(x):
    return x * a[0]
""", "a[0] = 5.0", args="num(3, seed=k, grad=True),")

case("structured array", """
a = np.zeros(2, dtype=[('p', float), ('q', int)])
a['p'] = 2.0
@way
def f(x):
    return x * float(a['p'][0])
""", "a['p'][0] = 5.0", args="num(3, seed=k, grad=True),")

case("numpy view of a parameter", """
w = num(3, grad=True)
v = w.detach().numpy()
@way
def f(x):
    return x * w
""", "v[0] = 9.0", "v += 1", "each: v[k % 3] = k", args="num(3, seed=k, grad=True),")

case("numpy() inside before a write", """
w = num(3)
@way
def f(x):
    old = w.numpy()
    w.add_(1)
    return x * float(old[0])
""", "w.zero_()", "w = num(3, seed=4)", args="num(3, seed=k, grad=True),")

case("numpy() of a result before a write", """
@way
def f(x):
    y = x.detach() * 2
    n = y.numpy()
    y.add_(1)
    return x * float(n[0]), n, y
""", "each: pass", args="num(3, seed=k, grad=True),")

case("numpy() of a copy", """
@way
def f(x):
    y = x.detach() * 2
    n = y.numpy().copy()
    y.add_(1)
    return y * float(n[0])
""", "each: pass", args="num(3, seed=k, grad=True),")

case("write through numpy() inside", """
w = num(3)
@way
def f(x):
    w.numpy()[0] = 7.0
    return x * w
""", "w.zero_()", "w = num(3, seed=3)", args="num(3, seed=k, grad=True),")

case("write through numpy() of a result", """
@way
def f(x):
    y = x.detach() * 2
    y.numpy()[0] = 7.0
    return y + 1
""", "each: pass", args="num(3, seed=k, grad=True),")

case("write through numpy() of an argument", """
@way
def f(x):
    x.detach().numpy()[0] = 7.0
    return x * 2
""", "each: pass", args="num(3, seed=k, grad=True),")

case("numpy functions inside", """
@way
def f(x):
    return x * np.mean(x.detach().numpy())
""", "each: pass", args="num(3, seed=k, grad=True),")

case("numpy on a tensor", """
w = num(3)
@way
def f(x):
    return x * float(np.sum(np.asarray(w)))
""", "w.add_(1)", "w = num(4)", args="num(3, seed=k, grad=True),")

case("array returned", """
@way
def f(x):
    return (x * 2).detach().numpy()
""", "each: pass", args="num(3, seed=k, grad=True),")

case("array of a capture returned", """
w = num(3)
@way
def f(x):
    return w.numpy()
""", "w.add_(1)", "w = num(3)", args="num(3, seed=k, grad=True),")

case("array kept", """
kept = []
@way
def f(x):
    y = x * 2
    kept.append(y.detach().numpy())
    return y
""", "kept.clear()", "kept[0][:] = 0 if kept else 0", args="num(3, seed=k, grad=True),", fails=True)

case("array written inside", """
a = np.zeros(3)
@way
def f(x):
    a[:] = x.detach().numpy()
    return x * wf.from_numpy(a.copy())
""", "a = np.zeros(3)", "a = np.zeros(6)[::2]", args="num(3, seed=k, grad=True),")

case("dlpack", """
a = np.ones(3)
@way
def f(x):
    return x * wf.from_dlpack(a)
""", "a[0] = 5", args="num(3, seed=k, grad=True),")

case("as_tensor", """
a = np.ones(3)
@way
def f(x):
    return x * wf.as_tensor(a)
""", "a[0] = 5", args="num(3, seed=k, grad=True),")

case("asarray shares", """
a = np.ones(3)
@way
def f(x):
    wf.as_tensor(a).add_(1)
    return x * 2
""", "a[0] = 5", args="num(3, seed=k, grad=True),")

case("frombuffer", """
b = bytearray(np.ones(3).tobytes())
@way
def f(x):
    return x * wf.frombuffer(b, dtype=wf.float64)
""", "b[:] = np.full(3, 4.0).tobytes()", args="num(3, seed=k, grad=True),")

case("memoryview", """
a = np.ones(3)
m = memoryview(a)
@way
def f(x):
    return x * m[0]
""", "a[0] = 4", args="num(3, seed=k, grad=True),")

case("array module", """
import array
a = array.array('d', [1.0, 2.0])
@way
def f(x):
    return x * a[0]
""", "a[0] = 4.0", args="num(3, seed=k, grad=True),")

case("bytearray", """
b = bytearray(b'ab')
@way
def f(x):
    return x * b[0]
""", "b[0] = 7", args="num(3, seed=k, grad=True),")

case("tolist", """
w = num(2)
@way
def f(x):
    a, b = w.tolist()
    return x * a + b
""", "w.add_(1)", "each: w.mul_(1.1)", args="num(3, seed=k, grad=True),")

case("item", """
w = num()
@way
def f(x):
    return x * w.item()
""", "w.add_(1)", "each: w.add_(0.1)", args="num(3, seed=k, grad=True),")

case("numpy ufunc on a tensor", """
w = num(3)
@way
def f(x):
    return x * wf.from_numpy(np.exp(w.numpy()))
""", "w.add_(1)", args="num(3, seed=k, grad=True),")

case("numpy error state", """
__old = np.geterr()
undo(lambda o=__old: np.seterr(**o))
@way
def f(x):
    return x * (2 if np.geterr()['divide'] == 'warn' else 3)
""", "np.seterr(divide='ignore')", args="num(3, seed=k, grad=True),")

case("numpy print options", """
__old = np.get_printoptions()
undo(lambda o=__old: np.set_printoptions(**o))
a = np.array([1.23456789])
@way
def f(x):
    return x * len(str(a))
""", "np.set_printoptions(precision=2)", args="num(3, seed=k, grad=True),")


for write in ("n[0] = 5", "n += 1", "n.sort()"):
    case(f"array of an argument written outside: {write}", """
x = num(3)
n = x.numpy()
@way
def f(x):
    return x * 2
""", f"each: {write}", args="x,")
    case(
        f"array of a result written outside: {write}", "@way\ndef f(x):\n    y = x.exp()\n    return y, y * 2\n",
        args="num(3, seed=k, grad=True),", after=f"n = r[0].detach().numpy()\n{write}\nr[1].sum().backward()")

dice = family("random")

for name, body in [
    ("dropout", "return F.dropout(x, 0.5, True)"), ("randn", "return x + wf.randn(3)"),
    ("rand and branch", "return x * 2 if wf.rand(()) > 0.5 else x"),
    ("bernoulli", "return x * wf.bernoulli(wf.full((3,), 0.5))"), ("randperm", "return x[wf.randperm(3)]"),
    ("randint", "return x[wf.randint(0, 3, (2,))]"),
    ("in place", "return x.detach().clone().normal_() + x.detach().clone().uniform_()"),
    ("multinomial", "return wf.multinomial(x.detach().abs() + 1, 2)"),
    ("own generator", "return x + wf.randn(3, generator=gen)"), ("module", "return drop(x)"),
    ("seed inside", "wf.manual_seed(3)\n    return x + wf.randn(3)"),
    ("state read", "return x + wf.get_rng_state().sum() * 0"),
    ("seed read", "return x * (wf.initial_seed() % 100)"), ("unused", "wf.randn(5)\n    return x * 2"),
    ("a branch draws", "if x.sum() > 0:\n        x = x + wf.randn(3)\n    return x * wf.rand(3)"),
    ("loop", "for _ in range(int(x[0].abs() * 3)):\n        x = x + wf.rand(3)\n    return x"),
    ("fork", "with wf.fork_rng():\n        wf.manual_seed(1)\n        y = wf.rand(3)\n    return x * y"),
    ("rand_like", "return wf.rand_like(x) + wf.randn_like(x) * x"), ("rrelu", "return F.rrelu(x, training=True)"),
    ("normal", "return wf.normal(x.detach(), 1.0)"), ("exponential", "return wf.ones(3).exponential_() * x"),
]:  # fmt: skip
    dice(name, f"""
gen, drop = wf.Generator(), nn.Dropout(0.3)
gen.manual_seed(5)
saved = wf.get_rng_state()
@way
def f(x):
    {body}
""", "wf.manual_seed(11)", "wf.rand(7)", "gen.manual_seed(1); drop.p = 0.9; drop.eval()", "each: wf.manual_seed(k)",
        *(("gen = wf.Generator().manual_seed(2)", "wf.rand(1, generator=gen)") if name == "own generator" else ()),
        *(("drop.p = 0.8", "drop.eval()", ("drop.eval()", "drop.train()")) if name == "module" else ()),
        *(("old = wf.get_rng_state(); wf.set_rng_state(old)", "wf.set_rng_state(saved)") if name == "randn" else ()),
        args="num(3, seed=k, grad=True),")  # fmt: skip

kept = family("kept")

for name, body in [
    ("one result", "return x * w"), ("two results", "y = x * w\n    return y, y.exp()"),
    ("view of a result", "y = x * w\n    return y[1:], y"), ("no gradient", "return (x * w).detach()"),
    ("constant", "return wf.ones(3), x * 2"),
    ("created inside", "y = wf.zeros(3)\n    y.add_(x.detach())\n    return y"),
    ("capture returned", "return w, x * w"), ("argument returned", "return x, x * 2"),
    ("number", "return x.sum().item(), x.shape"), ("list", "return [x * i for i in range(3)]"),
    ("constant structure", "return {'a': [1, 2], 'b': (x,)}"), ("fresh list", "return [1, 2, 3]"),
    ("captured list", "return constants"), ("cached tensor", "return cache.setdefault('a', wf.ones(3)), x"),
    ("nothing", "w.detach().add_(0.5)"), ("the same object twice", "y = x * 2\n    return y, y"),
    ("empty", "return (), [], {}, None, x[:0]"), ("mask", "return x > 0, x[x > 0]"),
    ("gradient", "return wf.autograd.grad((x * w).sum(), w)[0]"),
    ("leaf made inside", "y = wf.ones(3, requires_grad=True)\n    return y, y * x"),
    ("detached and made a leaf", "return x.detach().requires_grad_()"), ("bool", "return bool(x.sum() > 0)"),
    ("string", "return 'a' if x.sum() > 0 else 'b'"), ("lambda", "return lambda v: v * x.detach()"),
    ("named tuple", "return x.max(0), x.sort()"),
]:  # fmt: skip
    for after in ("", "r2 = globals().get('last')\nlast = r", "changed(r)"):
        kept(f"{name}: {after[:7] or 'untouched'}", f"""
w, cache, constants = num(3, grad=True), {{}}, [1.0, num(3)]
def changed(r):
    if isinstance(r, wf.Tensor) and r.dtype.is_floating_point:
        with wf.no_grad():
            r.add_(100)
    elif isinstance(r, list):
        r.append(k)
    elif isinstance(r, dict):
        r["new"] = k
    if isinstance(r, (tuple, list, dict)):
        for part in list(r.values()) if isinstance(r, dict) else list(r):
            changed(part)
@way
def f(x):
    {body}
""", args="num(3, seed=k, grad=True),", after=after, fails=after != "")  # fmt: skip
