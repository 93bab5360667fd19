"""Names of the Python world, caches, dispatch and patterns."""

from tests.compiler.hostile.harness import family

case = family("python")

# -- names ------------------------------------------------------------------------------------------------------------

case("global number", """
q = 2.0
@way
def f(x):
    return x * q
""",
    "q = 3.0", "q = 3", "q = True", "q = num(4)", "q = num(4, grad=True)", "q = np.float64(3)", "q = np.ones(4)",
    ("q = 3.0", "q = 2.0"), "globals()['q'] = 4.0", "each: q = k * 0.5", "each: q = k % 3",
    "q = 2 + 0j if False else 5", "q = float('nan')", "q = float('inf')", "q = -0.0")  # fmt: skip

case("global function", """
def h(x):
    return x * 2
@way
def f(x):
    return h(x)
""",
    "def h(x): return x + 1", "h = lambda x: x", "h.__code__ = (lambda x: x - 5).__code__", "h = F.relu", "h = abs",
    "h = nn.Linear(4, 4)", "h.__defaults__ = (1,)",
    "import functools; h = functools.partial(lambda a, x: x * a, 4.0)")  # fmt: skip

case("default changed", """
def h(x, k=2.0, *, m=1.0):
    return x * k + m
@way
def f(x, j=1.0):
    return h(x) * j
""", "h.__defaults__ = (3.0,)", "h.__kwdefaults__ = {'m': 4.0}", "h.__kwdefaults__['m'] = 5.0")

case("own default changed", """
def g(x, k=2.0, *, m=[1.0]):
    return x * k + m[0]
f = way(g)
""",
    "g.__defaults__ = (3.0,)", "g.__kwdefaults__['m'][0] = 5.0", "g.__kwdefaults__ = {'m': [4.0]}",
    "g.__code__ = (lambda x, k=1, *, m=2: x * k).__code__")  # fmt: skip

case("closure", """
def make(q):
    def put(v):
        nonlocal q
        q = v
    @way
    def f(x):
        return x * q
    return f, put
f, put = make(2.0)
""", "put(3.0)", "put(num(4))", "each: put(k / 3)", ("put(3.0)", "put(2.0)"), "put([1])if False else put(1)")

case("closure cell emptied", """
def make(q):
    def drop():
        nonlocal q
        del q
    @way
    def f(x):
        try:
            return x * q
        except NameError:
            return x
    return f, drop
f, drop = make(2.0)
""", "drop()")

case("name deleted", """
q = 2.0
@way
def f(x):
    try:
        return x * q
    except NameError:
        return x - 1
""", "del q", ("del q", "q = 5.0"))

case("builtin hidden", """
@way
def f(x):
    return x * abs(-2) + len([1, 2]) + sum([1.0])
""", "abs = lambda v: v", "len = lambda v: 7", "sum = lambda v: 3.0", ("max = len; abs = lambda v: v", "del abs"))

case("builtin patched", """
import builtins
@way
def f(x):
    return x * abs(-2) + len([1, 2]) + max(1, 2)
""", "patch(builtins, 'abs', lambda v: 5)")

case("library patched", """
@way
def f(x):
    return F.relu(x) * math.sin(1.0) + wf.ones(4) * np.sqrt(4.0)
""",
    "patch(math, 'sin', lambda v: 9.0)", "patch(F, 'relu', lambda v: v)", "patch(wf, 'ones', wf.zeros)",
    "patch(np, 'sqrt', lambda v: 7.0)", "F = __import__('types').SimpleNamespace(relu=lambda v: v * 3)",
    "math = __import__('types').SimpleNamespace(sin=lambda v: 4.0)")  # fmt: skip

case("tensor method patched", """
@way
def f(x):
    return x.tanh() + (x * 2) - x.sum()
""",
    "patch(wf.Tensor, 'tanh', lambda s: s)", "patch(wf.Tensor, '__mul__', lambda s, o: s)",
    "patch(wf.Tensor, '__sub__', lambda s, o: s)")  # fmt: skip

case("module class patched", """
lin = nn.Linear(4, 3)
@way
def f(x):
    return lin(x)
""",
    "patch(nn.Linear, 'forward', lambda s, x: x * 2)", "patch(nn.Linear, '__call__', lambda s, x: x * 3)",
    "lin.forward = lambda x: x * 4",
    "old = nn.Linear.forward; patch(nn.Linear, 'forward', lambda s, x: old(s, x) * 2)",
    "lin.__class__ = type('L', (nn.Linear,), {'forward': lambda s, x: x})", "patch(nn, 'Linear', None)")

case("imported inside", """
import types, sys
extra = types.ModuleType('hostile_extra')
extra.q = 2.0
sys.modules['hostile_extra'] = extra
undo(lambda: sys.modules.pop('hostile_extra'))
@way
def f(x):
    import hostile_extra
    return x * hostile_extra.q
""", "extra.q = 3.0", "new = types.ModuleType('hostile_extra'); new.q = 4.0; sys.modules['hostile_extra'] = new")

case("from-import inside", """
import types, sys
extra = types.ModuleType('hostile_extra')
extra.q = 2.0
sys.modules['hostile_extra'] = extra
undo(lambda: sys.modules.pop('hostile_extra'))
@way
def f(x):
    from hostile_extra import q
    return x * q
""", "extra.q = 3.0")

case("importlib", """
import importlib, types, sys
extra = types.ModuleType('hostile_extra')
extra.q = 2.0
sys.modules['hostile_extra'] = extra
undo(lambda: sys.modules.pop('hostile_extra'))
@way
def f(x):
    return x * importlib.import_module('hostile_extra').q
""", "extra.q = 3.0")

case("sys.modules", """
import types, sys
extra = types.ModuleType('hostile_extra')
extra.q = 2.0
sys.modules['hostile_extra'] = extra
undo(lambda: sys.modules.pop('hostile_extra'))
@way
def f(x):
    return x * sys.modules['hostile_extra'].q
""", "extra.q = 3.0")

case("globals()", """
q = 2.0
@way
def f(x):
    return x * globals()['q']
""", "q = 3.0")

case("eval and exec", """
q = 2.0
@way
def f(x):
    return x * eval('q')
""", "q = 3.0")

case("locals", """
q = 2.0
@way
def f(x):
    a = q
    return x * locals()['a']
""", "q = 3.0")

case("annotations", """
@way
def f(x):
    return x * len(h.__annotations__)
def h(a: int):
    pass
""", "h.__annotations__['b'] = 1", "h.__name__ = 'z'")

case("doc and name", """
def h():
    'ab'
@way
def f(x):
    return x * len(h.__doc__) + len(h.__name__)
""", "h.__doc__ = 'abcd'", "h.__name__ = 'longer'")

# -- caches and dispatch ----------------------------------------------------------------------------------------------

case("lru_cache", """
import functools
q = 2.0
@functools.lru_cache
def h(n):
    return q * n
@way
def f(x):
    return x * h(3)
""", "q = 5.0", "q = 5.0; h.cache_clear()", "h.cache_clear()", "h = lambda n: 1.0")

case("lru_cache info", """
import functools
@functools.lru_cache
def h(n):
    return n
@way
def f(x):
    h(1)
    return x * h.cache_info().hits
""", "h.cache_clear()")

case("cache", """
import functools
log = []
@functools.cache
def h(n):
    log.append(n)
    return float(n)
@way
def f(x):
    return x * h(k % 3)
""", "h.cache_clear()")

case("own cache", """
q, cache = 2.0, {}
def h(n):
    if n not in cache:
        cache[n] = q * n
    return cache[n]
@way
def f(x):
    return x * h(x.shape[0])
""", "q = 5.0", "q = 5.0; cache.clear()", "cache[3] = 1.0")

case("singledispatch", """
import functools
@functools.singledispatch
def h(v, x):
    return x
@h.register
def _(v: int, x):
    return x * 2
v = 1
@way
def f(x):
    return h(v, x)
""",
    "h.register(int, lambda v, x: x * 5)", "v = 1.0", "h.register(object, lambda v, x: x * 7); v = 's'",
    "h.register(bool, lambda v, x: x * 9); v = True")  # fmt: skip

case("singledispatchmethod", """
import functools
class A:
    @functools.singledispatchmethod
    def h(self, v):
        return 1.0
a = A()
@way
def f(x):
    return x * a.h(3)
""", "A.h.register(int, lambda s, v: 5.0)")

case("ABC.register", """
import abc
class B(abc.ABC):
    pass
class C:
    pass
c = C()
@way
def f(x):
    return x * 2 if isinstance(c, B) else x - 1
""", "B.register(C)", "C.__bases__ = (B,) if False else C.__bases__; c = 3")

case("__subclasshook__", """
import abc
class B(abc.ABC):
    @classmethod
    def __subclasshook__(cls, C):
        return hasattr(C, 'h')
class C:
    pass
c = C()
@way
def f(x):
    return x * 2 if isinstance(c, B) else x - 1
""", "C.h = 1; c = type('D', (C,), {})()")

case("match class pattern", """
class P:
    __match_args__ = ('a', 'b')
    def __init__(self, a, b):
        self.a, self.b = a, b
p = P(1, 2.0)
@way
def f(x):
    match p:
        case P(1, b):
            return x * b
        case P(a, b):
            return x + a
    return x
""", "p.a = 5", "p.b = 3.0", "P.__match_args__ = ('b', 'a')", "p = 3", "p = P(1, num(4))")

case("match values", """
v = {'a': [1, 2]}
@way
def f(x):
    match v:
        case {'a': [1, q]}:
            return x * q
        case {'b': q, **rest}:
            return x - q + len(rest)
        case str() | int():
            return x
    return x + 1
""", "v['a'][1] = 5", "v['a'].append(1)", "v = {'b': 2.0, 'c': 1}", "v = 'abc'", "v = 3", "v = None")

case("match guard", """
v, q = 3, 2.0
@way
def f(x):
    match v:
        case int() if q > 2:
            return x * q
        case n:
            return x + n
""", "q = 4.0", "v = 5", "v = 2.5; q = 5.0")
