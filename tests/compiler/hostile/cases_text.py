"""Text, and things inside a function that are neither tensors nor names."""

from tests.compiler.hostile.harness import family

case = family("python")

# -- text -------------------------------------------------------------------------------------------------------------

case("str of an object", """
class A:
    q = 2
    def __str__(self):
        return str(self.q)
a = A()
@way
def f(x):
    return x * int(str(a))
""", "a.q = 3", "A.__str__ = lambda s: '7'")

case("repr of an object", """
class A:
    q = 2
    def __repr__(self):
        return str(self.q)
a = A()
@way
def f(x):
    return x * int(repr(a)) + int(f'{a!r}')
""", "a.q = 3", "A.__repr__ = lambda s: '7'")

case("format of an object", """
class A:
    q = 2
    def __format__(self, spec):
        return str(self.q) + spec
a = A()
@way
def f(x):
    return x * int(f'{a:1}') + int('{:2}'.format(a)) + int(format(a, '3'))
""", "a.q = 3", "A.__format__ = lambda s, p: '7'")

case("f-string of a list", """
q = [1, 2]
@way
def f(x):
    return x * len(f'{q}')
""", "q.append(30)", "q[0] = 1000")

case("f-string of a number", """
q = 12.5
@way
def f(x):
    return x * len(f'{q:.2f} {x.shape}')
""", "q = 12345.0")

case("percent format", """
q = 12
@way
def f(x):
    return x * len('%d %s' % (q, [q]))
""", "q = 12345")

case("text of a tensor", """
w = num(2)
@way
def f(x):
    return x * len(str(w.tolist()))
""", "w.mul_(1000.0)", "w = num(3)")

case("repr of a tensor", """
w = wf.ones(2)
@way
def f(x):
    return x * len(repr(w))
""", "w.mul_(1000.5)")

case("repr of a module", """
m = nn.Linear(2, 3)
@way
def f(x):
    return x * len(repr(m))
""", "m = nn.Linear(200, 3)", "m.extra_repr = lambda: 'much longer than before'", "m.in_features = 20000")

case("text of a dtype", """
w = wf.ones(2)
@way
def f(x):
    return x * len(str(w.dtype))
""", "w = w.float()", "w = w.int()")

case("string as a key", """
name, table = 'a', {'a': 2.0, 'b': 3.0}
@way
def f(x):
    return x * table[name.lower()]
""", "name = 'B'", "table['a'] = 5.0", "table = {'a': num(4)}", "each: name = 'ab'[k % 2]")

case("join and split", """
name = 'a.b'
@way
def f(x):
    return x * len(name.split('.')) if name.startswith('a') else x
""", "name = 'a.b.c'", "name = 'b'")

case("regular expression", """
import re
pattern, text = re.compile('a+'), 'caaat'
@way
def f(x):
    return x * len(pattern.search(text).group())
""", "text = 'cat'", "pattern = re.compile('ca')")


case("context variable", """
import contextvars
q = contextvars.ContextVar('q', default=2.0)
__t = q.set(2.0)
@way
def f(x):
    return x * q.get()
""", "__t2 = q.set(3.0)")

case("thread local", """
import threading
local = threading.local()
local.q = 2.0
@way
def f(x):
    return x * local.q
""", "local.q = 3.0")

case("weak reference", """
import weakref
class A:
    q = 2.0
a = A()
ref = weakref.ref(a)
@way
def f(x):
    return x * ref().q if ref() is not None else x - 1
""", "a.q = 3.0", "a = None", "a = A(); ref = weakref.ref(a)")

case("weak dictionary", """
import weakref
class A:
    q = 2.0
a = A()
map_ = weakref.WeakValueDictionary(a=a)
@way
def f(x):
    return x * len(map_)
""", "a = None", "b = A(); map_['b'] = b")

case("weak proxy", """
import weakref
class A:
    q = 2.0
a = A()
proxy = weakref.proxy(a)
@way
def f(x):
    return x * proxy.q
""", "a.q = 3.0")

case("id", """
import types
a = b = types.SimpleNamespace()
@way
def f(x):
    return x * 2 if id(a) == id(b) else x
""", "b = types.SimpleNamespace()", "a = b = types.SimpleNamespace(q=1)")

case("is", """
a = b = [1]
@way
def f(x):
    return x * 2 if a is b else x
""", "b = [1]", "a = b = [1]")

case("hash of a string", """
a = 'abc'
@way
def f(x):
    return x * (hash(a) == hash('abc'))
""", "a = 'abd'")

case("_version", """
w = num(3)
@way
def f(x):
    return x * w._version
""", "w.add_(1)", "w = num(3)")

case("data_ptr", """
w, v = num(4), num(4)
@way
def f(x):
    return x * 2 if w.data_ptr() == v.data_ptr() else x
""", "v = w[:]", "v.data = w", "w = v")

case("storage_offset", """
t = num(6)
w = t[1:3]
@way
def f(x):
    return x * w.storage_offset()
""", "w = t[2:4]", "each: w = t[k % 4 : k % 4 + 2]")

case("sizes of captures", """
w = num(3, 4)
@way
def f(x):
    return x * w.shape[0] + w.numel() + w.dim() + len(w)
""", "w = num(5, 4)", "w = num(7)", "w.resize_(2, 6)")

case("flags of captures", """
w = num(3, 4)
@way
def f(x):
    return x * (1 + w.requires_grad) + w.is_leaf + w.is_contiguous()
""", "w.requires_grad_()", "w = num(4, 3).T", "w = num(3, 4, grad=True) * 2")

case("grad_fn of captures", """
w = num(4, grad=True)
@way
def f(x):
    return x * (2 if w.grad_fn is None else 3)
""", "w = w * 2", "w = w.detach()")

case("modes read", """
@way
def f(x):
    return x * 2 if wf.is_grad_enabled() else x
""", "wf.set_grad_enabled(False); undo(lambda: wf.set_grad_enabled(True))", after="")

case("default dtype read", """
@way
def f(x):
    return x.sum() * wf.ones(2), wf.zeros(1), wf.tensor(1.5)
""", "wf.set_default_dtype(wf.float32)", ("wf.set_default_dtype(wf.float32)", "wf.set_default_dtype(wf.float64)"))

case("threads set", """
@way
def f(x):
    return x * wf.get_num_threads()
""", "old = wf.get_num_threads(); undo(lambda o=old: wf.set_num_threads(o)); wf.set_num_threads(old + 1)")

case("garbage counter", """
import gc
@way
def f(x):
    return x * gc.isenabled()
""", "gc.disable(); undo(gc.enable)")

case("function by name", """
name = 'sin'
@way
def f(x):
    return getattr(wf, name)(x) + getattr(x, name)()
""", "name = 'cos'", "each: name = ('sin', 'cos', 'exp')[k % 3]")

case("functools.reduce", """
import functools, operator
ops = [2.0, 3.0]
@way
def f(x):
    return functools.reduce(operator.mul, ops, x)
""", "ops.append(4.0)", "ops[0] = 5.0")

case("map, filter, zip", """
ws, keep = [1.0, 2.0, 3.0], 1.5
@way
def f(x):
    return sum(x * w * j for j, w in zip(range(9), filter(lambda v: v > keep, ws)))
""", "keep = 2.5", "ws.append(4.0)", "ws.reverse()")

case("sorted by key", """
ws, sign = [1.0, 3.0, 2.0], 1
@way
def f(x):
    return x * sorted(ws, key=lambda v: sign * v)[0]
""", "sign = -1", "ws[0] = 9.0")

case("functools.partial", """
import functools
def h(a, x, b=1.0):
    return x * a + b
p = functools.partial(h, 2.0)
@way
def f(x):
    return p(x)
""",
    "p = functools.partial(h, 3.0)", "p.keywords['b'] = 4.0", "p.__setstate__((h, (5.0,), {}, None))",
    "p = functools.partial(h, 2.0, b=num(4))")  # fmt: skip

case("lambda in a list", """
hs = [lambda x: x * 2, lambda x: x + 1]
@way
def f(x):
    for h in hs:
        x = h(x)
    return x
""", "hs.reverse()", "hs.append(lambda x: x * 3)", "hs[0] = F.relu", "hs.clear()")

case("dispatch table", """
table, key = {'a': lambda x: x * 2, 'b': wf.exp}, 'a'
@way
def f(x):
    return table[key](x)
""", "key = 'b'", "table['a'] = wf.cos", "each: key = 'ab'[k % 2]")

case("class made inside", """
q = 2.0
@way
def f(x):
    class A:
        r = q
    return x * A().r
""", "q = 3.0")

case("comprehension and walrus", """
ws = {1, 2}
@way
def f(x):
    return x * sum(n for w in ws if (n := w * 2) > 2)
""", "ws.add(3)", "ws.discard(2)")

case("star arguments", """
a, kw = [2.0, 3.0], {'c': 1.0}
def h(x, *args, c=0.0, **rest):
    return x * sum(args) + c + len(rest)
@way
def f(x):
    return h(x, *a, **kw)
""", "a.append(4.0)", "kw['c'] = 5.0", "kw['d'] = 1", "a.clear()")

case("ordered by a dict", """
d = {'b': 1.0, 'a': 2.0}
@way
def f(x):
    return x * next(iter(d.values())) + list(d).index('a')
""", "d['b'] = d.pop('b')", "d = {'a': 1.0, 'b': 2.0}", "d['c'] = 3.0")
