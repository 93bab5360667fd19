"""Functions of every kind: methods, callable objects, compiled in compiled, threads."""

from tests.compiler.hostile.harness import family

case = family("functions")

case("method", """
class A:
    q = 2.0
    @way
    def h(self, x):
        return x * self.q
a, b = A(), A()
b.q = 3.0
f = a.h
""", "a.q = 5.0", "A.q = 6.0", "f = b.h", "each: f = (a.h, b.h)[k % 2]", "a.q = num(4)", "f = A().h")

case("method of a fresh object", """
class A:
    def __init__(self, q):
        self.q = q
    @way
    def h(self, x):
        return x * self.q
f = A(2.0).h
""", "each: f = A(float(k)).h", "each: f = A(float(k % 2)).h")

case("method of a module", """
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(num(4))
    @way
    def h(self, x):
        return x * self.w
a, b = A(), A()
f = a.h
""", "a.w = nn.Parameter(num(4, seed=3))", "b.w.data.mul_(2); f = b.h", "each: f = (a.h, b.h)[k % 2]")

case("forward decorated", """
class A(nn.Module):
    q = 2.0
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(num(4))
    @way
    def forward(self, x):
        return x * self.w * self.q
f = A()
""",
    "f.q = 3.0", "f.w = nn.Parameter(num(4, seed=3))", "f = A(); f.q = 5.0",
    "f.register_forward_hook(lambda m, a, y: y * 3)")  # fmt: skip

case("classmethod", """
class A:
    q = 2.0
    @classmethod
    @way
    def h(cls, x):
        return x * cls.q
class B(A):
    q = 3.0
f = A.h
""", "A.q = 4.0", "f = B.h", "each: f = (A.h, B.h)[k % 2]")

case("classmethod outside", """
class A:
    q = 2.0
    @way
    @classmethod
    def h(cls, x):
        return x * cls.q
f = A.h
""", "A.q = 4.0")

case("staticmethod", """
q = 2.0
class A:
    @staticmethod
    @way
    def h(x):
        return x * q
f = A.h
""", "q = 4.0")

case("callable object", """
class A:
    q = 2.0
    def __call__(self, x):
        return x * self.q
a = A()
f = way(a)
""", "a.q = 3.0", "A.q = 4.0", "A.__call__ = lambda s, x: x - 1", "a.__call__ = lambda x: x")

case("callable object with state", """
class A:
    n = 0
    def __call__(self, x):
        self.n += 1
        return x * self.n
a = A()
f = way(a)
""", "a.n = 10")

case("partial", """
import functools
def h(q, x, r=1.0):
    return x * q + r
p = functools.partial(h, 2.0, r=3.0)
f = way(p)
""", "p.keywords['r'] = 5.0", "h.__code__ = (lambda q, x, r=0: x).__code__")

case("partial of a list", """
import functools
qs = [2.0]
p = functools.partial(lambda qs, x: x * qs[0], qs)
f = way(p)
""", "qs[0] = 5.0")

case("lambda", """
q = 2.0
f = way(lambda x: x * q)
""", "q = 3.0")

case("bound method of a list", """
qs = [3.0]
@way
def f(x):
    take = qs.count
    return x * take(3.0)
""", "qs.append(3.0)")

case("recursion", """
depth = 3
@way
def f(x, n=None):
    n = depth if n is None else n
    return x if n == 0 else f(x.sin(), n - 1) * 2
""", "depth = 5", "each: depth = k % 4")

case("mutual recursion", """
def even(x, n):
    return x if n == 0 else odd(x * 2, n - 1)
def odd(x, n):
    return x - 1 if n == 0 else even(x + 1, n - 1)
n = 4
@way
def f(x):
    return even(x, n)
""", "n = 5", "def odd(x, n): return x * 7")

case("generator inside", """
n = 3
def parts(x):
    for i in range(n):
        yield x * i
@way
def f(x):
    return sum(parts(x))
""", "n = 5", "def parts(x): yield x")

case("generator with send", """
q = 2.0
def co():
    v = yield 1.0
    yield v * q
@way
def f(x):
    c = co()
    return next(c) * c.send(x)
""", "q = 5.0")

case("decorated helper", """
import functools
q = 2.0
def deco(h):
    @functools.wraps(h)
    def g(*a):
        return h(*a) * q
    return g
@deco
def h(x):
    return x + 1
@way
def f(x):
    return h(x)
""", "q = 5.0", "h.__wrapped__.__code__ = (lambda x: x).__code__", "h = h.__wrapped__")

case("context manager from a generator", """
import contextlib
q, log = 2.0, []
@contextlib.contextmanager
def scale():
    log.append('in')
    yield q
    log.append('out')
@way
def f(x):
    with scale() as s:
        return x * s
""", "q = 5.0")

case("closure made inside", """
q = 2.0
@way
def f(x):
    def inner(v):
        return v * q + x.sum()
    return inner(x)
""", "q = 5.0")

case("function chosen by a value", """
hs = [wf.sin, wf.cos]
@way
def f(x):
    return hs[int(x.sum() > 0)](x)
""", "hs.reverse()", "hs[0] = lambda v: v")

case("compiled calls compiled", """
q = 2.0
@way
def g(x):
    return x * q
@way
def f(x):
    return g(x) + g(x.sin())
""", "q = 5.0", "g = lambda x: x", "def g(x): return x * 9", "g = way(lambda x: x * 4)")

case("compiled calls a compiled module", """
m = nn.Linear(4, 4)
g = way(m)
@way
def f(x):
    return g(x).tanh()
""",
    "m.weight.data.mul_(2)", "m.eval()", "m.bias = None", "m.register_forward_hook(lambda m, a, y: y * 2)",
    "g = nn.Tanh()", "g = way(nn.Linear(4, 2))")  # fmt: skip

case("compiled calls compiled with state", """
n = [0]
@way
def g(x):
    n[0] += 1
    return x * n[0]
@way
def f(x):
    return g(x) + g(x)
""", "n[0] = 10")

case("both called by turns", """
w = num(4, grad=True)
@way
def g(x):
    with wf.no_grad():
        w.add_(0.1)
@way
def h(x):
    return x * w
def f(x):
    g(x)
    return h(x)
""", "w = num(4, seed=3, grad=True)", "w.data.zero_()")

case("one writes what another reads", """
t = num(4)
@way
def put(x):
    t.copy_(x.detach()[0])
@way
def get(x):
    return t.clone() * x
def f(x):
    put(x)
    y = get(x)
    put(x * 2)
    return y
""", "t = num(4, seed=2)")

case("compiled twice", """
q = 2.0
def g(x):
    return x * q
f = way(way(g))
""", "q = 5.0")

case("the same function compiled twice", """
n = [0]
def g(x):
    n[0] += 1
    return x * n[0]
f1, f2 = way(g), way(g)
def f(x):
    return f1(x) + f2(x)
""", "n[0] = 7")

case("inside no_grad of its own", """
w = num(4, grad=True)
@way
def f(x):
    with wf.no_grad():
        y = x * w
    z = x * w
    return y, z
""", "w.requires_grad_(False)")

case("mode left behind", """
on = False
@way
def f(x):
    y = x * 2
    wf.set_grad_enabled(not on)
    return y, x * 3
""", ("on = True", "on = False"), after="wf.set_grad_enabled(True)")

case("default dtype set inside", """
dt = wf.float64
@way
def f(x):
    wf.set_default_dtype(dt)
    return x * 2, wf.ones(2)
""", "dt = wf.float32")

case("func.grad inside", """
q = 2.0
@way
def f(x):
    return wf.func.grad(lambda t: (t * t * q).sum())(x.detach())
""", "q = 5.0")

case("vmap inside", """
q = 2.0
@way
def f(x):
    return wf.vmap(lambda r: r.softmax(0) * q)(x.detach())
""", "q = 5.0")

case("checkpoint inside", """
w = num(4, grad=True)
@way
def f(x):
    return wf.checkpoint(lambda t: (t * w).tanh(), x, use_reentrant=False)
""", "w = num(4, seed=4, grad=True)", "w.requires_grad_(False)")

case("checkpoint with dropout", """
p = 0.5
@way
def f(x):
    return wf.checkpoint(lambda t: F.dropout(t, p, True), x, use_reentrant=False)
""", "p = 0.1", "wf.manual_seed(4)")
