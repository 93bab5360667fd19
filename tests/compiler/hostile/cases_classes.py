"""Classes that are changed from outside: bases, operators, methods, metaclasses."""

from tests.compiler.hostile.harness import family

case = family("attributes")

case("simple namespace", """
import types
a = types.SimpleNamespace(q=2.0)
@way
def f(x):
    return x * a.q
""", "a.q = 3.0", "a.__dict__['q'] = 4.0", "a = types.SimpleNamespace(q=5.0)")

case("module object", """
import types
a = types.ModuleType('a')
a.q = 2.0
@way
def f(x):
    return x * a.q
""", "a.q = 3.0", "a.__dict__['q'] = 4.0", "a.__getattr__ = lambda n: 5.0; del a.q")

case("bases changed", """
class P:
    q = 2.0
class Q:
    q = 3.0
class A(P):
    pass
a = A()
@way
def f(x):
    return x * a.q
""", "A.__bases__ = (Q,)", "P.q = 4.0", "A.q = 5.0", ("A.__bases__ = (Q,)", "A.__bases__ = (P,)"))

case("super", """
class P:
    def h(self, x):
        return x * 2
class Q:
    def h(self, x):
        return x * 3
class A(P):
    def h(self, x):
        return super().h(x) + 1
a = A()
@way
def f(x):
    return a.h(x)
""", "A.__bases__ = (Q,)", "P.h = lambda s, x: x * 5", "a.h = lambda x: x", "A.h = P.h", "a.__class__ = P")

case("mixed order", """
class P:
    q = 2.0
class L(P):
    pass
class R(P):
    pass
class A(L, R):
    pass
a = A()
@way
def f(x):
    return x * a.q
""", "R.q = 3.0", "L.q = 4.0", "R.q = 3.0; A.__bases__ = (R, L)")

case("operators", """
class V:
    q = 2.0
    def __mul__(self, x):
        return x * self.q
    def __call__(self, x):
        return x + self.q
    def __getitem__(self, i):
        return self.q + i
    def __len__(self):
        return int(self.q)
    def __bool__(self):
        return self.q > 2.5
    def __contains__(self, i):
        return i < self.q
    def __iter__(self):
        return iter([self.q])
    def __eq__(self, o):
        return self.q == o
v = V()
@way
def f(x):
    y = v(v * x) + v[1] + len(v) + sum(v)
    return y * (2 if v else 3) + (4 if 2 in v else 5) + (6 if v == 3.0 else 7)
""",
    "v.q = 3.0", "V.q = 4.0", "V.__len__ = lambda s: 9", "V.__bool__ = lambda s: True",
    "V.__getitem__ = lambda s, i: 0", "V.__eq__ = lambda s, o: True", "V.__iter__ = lambda s: iter([1.0, 2.0])",
    "V.__contains__ = lambda s, i: False", "V.__call__ = lambda s, x: x", "each: v.q = float(k)")  # fmt: skip

case("context manager", """
class C:
    q = 2.0
    n = 0
    def __enter__(self):
        return self.q
    def __exit__(self, *a):
        self.n += 1
c = C()
@way
def f(x):
    with c as q:
        return x * q
""", "c.q = 3.0", "C.__enter__ = lambda s: 4.0")

case("method patched", """
class A:
    def h(self, x):
        return x * 2
    @staticmethod
    def s(x):
        return x + 1
    @classmethod
    def c(cls, x):
        return x - 1
a = A()
@way
def f(x):
    return a.h(x) + A.s(x) * a.c(x)
""",
    "A.h = lambda s, x: x * 3", "a.h = lambda x: x * 4", "A.s = staticmethod(lambda x: x)",
    "A.c = classmethod(lambda c, x: x)", "a.c = lambda x: x")  # fmt: skip

case("hash and order", """
class K:
    def __init__(self, n):
        self.n = n
    def __lt__(self, o):
        return self.n < o.n
    def __hash__(self):
        return 1
    def __eq__(self, o):
        return True
ks = [K(2), K(1)]
@way
def f(x):
    return x * sorted(ks)[0].n + len({k for k in ks}) + max(ks).n
""", "ks[0].n = 0", "K.__lt__ = lambda s, o: s.n > o.n", "K.__eq__ = lambda s, o: s is o", "ks.append(K(-3))")

case("iterating object", """
class R:
    n = 3
    def __iter__(self):
        for i in range(self.n):
            yield i + 1.0
r = R()
@way
def f(x):
    return sum(x * v for v in r)
""", "r.n = 2", "R.n = 4", "R.__iter__ = lambda s: iter([7.0])")

case("index object", """
class I:
    n = 1
    def __index__(self):
        return self.n
i = I()
@way
def f(x):
    return x[i] + [1.0, 2.0, 3.0][i]
""", "i.n = 2", "I.__index__ = lambda s: 0")

case("float object", """
class I:
    n = 1.5
    def __float__(self):
        return self.n
i = I()
@way
def f(x):
    return x * float(i) + math.sqrt(i)
""", "i.n = 2.5", "I.__float__ = lambda s: 9.0")

case("operator.attrgetter", """
import operator
class A:
    q = 2.0
a = A()
get = operator.attrgetter('q')
@way
def f(x):
    return x * get(a)
""", "a.q = 3.0", "get = operator.attrgetter('r'); a.r = 4.0")

case("operator.itemgetter", """
import operator
a = {'q': 2.0, 'r': 3.0}
get = operator.itemgetter('q')
@way
def f(x):
    return x * get(a)
""", "a['q'] = 3.0", "get = operator.itemgetter('r')")

case("operator.methodcaller", """
import operator
class A:
    q = 2.0
    def h(self, x):
        return x * self.q
a = A()
@way
def f(x):
    return operator.methodcaller('h', x)(a)
""", "a.q = 3.0", "A.h = lambda s, x: x", "a.h = lambda x: x - 1")

case("getattr by name", """
class A:
    q = 2.0
    r = 3.0
a, name = A(), 'q'
@way
def f(x):
    return x * getattr(a, name) + getattr(a, 'z', 1.0)
""", "name = 'r'", "a.z = 5.0", "A.z = 6.0", "A.__getattr__ = lambda s, n: 7.0")

case("dir", """
class A:
    q = 2.0
a = A()
@way
def f(x):
    return x * len([n for n in dir(a) if not n.startswith('_')])
""", "a.r = 1", "A.s = 2", "A.__dir__ = lambda s: ['a'] * 5")

case("type name", """
class A:
    pass
class B:
    pass
a = A()
@way
def f(x):
    return x * (2 if type(a).__name__ == 'A' else 3)
""", "a.__class__ = B", "A.__name__ = 'Z'", "a = B()")

case("issubclass", """
class A:
    pass
class B(A):
    pass
class C:
    pass
b = B()
@way
def f(x):
    return x * 2 if isinstance(b, A) and issubclass(B, A) else x
""", "B.__bases__ = (C,)", "b = C()", "A = C")
