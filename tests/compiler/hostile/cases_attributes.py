"""Attributes of objects and classes that are changed from outside."""

from tests.compiler.hostile.harness import family

case = family("attributes")

# -- objects whose attributes are changed from outside -------------------------------------------------------------

case("instance", """
class A:
    q = 2.0
a = A()
@way
def f(x):
    return x * a.q
""",
    "a.q = 3.0", "A.q = 4.0", "a.__dict__['q'] = 5.0", "vars(a)['q'] = 6.0", "object.__setattr__(a, 'q', 7.0)",
    "setattr(a, 'q', num(4))", "a.__class__ = type('B', (A,), {'q': 8.0})", ("a.q = 3.0", "del a.q"),
    "a = A(); a.q = 9.0", "A.__getattribute__ = lambda s, n: 5.0", "a.__dict__.update(q=1.5)",
    "a.__dict__ = {'q': 7.5}", "A.q = property(lambda s: 4.5)", "type.__setattr__(A, 'q', 3.5)",
    "each: a.q = float(k)", "each: a.q = float(k % 2)")  # fmt: skip

case("__dict__ read", """
class A:
    pass
a = A()
a.q = 2.0
@way
def f(x):
    return x * a.__dict__['q']
""", "a.q = 3.0", "a.__dict__['q'] = 4.0", "a.__dict__ = {'q': 5.0}", "vars(a).update(q=6.0)")

case("vars read", """
class A:
    pass
a = A()
a.q = 2.0
@way
def f(x):
    return x * sum(vars(a).values())
""", "a.q = 3.0", "a.r = 4.0", "del a.q")

case("__dict__ spread", """
class A:
    pass
a = A()
a.k = 2.0
def h(x, k=1.0, m=0.0):
    return x * k + m
@way
def f(x):
    return h(x, **a.__dict__)
""", "a.k = 3.0", "a.m = 4.0", "del a.k")

case("slots", """
class A:
    __slots__ = ('q', 'r')
a = A()
a.q = 2.0
@way
def f(x):
    return x * a.q if hasattr(a, 'r') else x + a.q
""", "a.q = 3.0", "a.r = 1", "A.q.__set__(a, 4.0)", "object.__setattr__(a, 'q', 5.0)")

case("property", """
class A:
    q = 2.0
    @property
    def twice(self):
        return self.q * 2
a = A()
@way
def f(x):
    return x * a.twice
""", "a.q = 3.0", "A.twice = property(lambda s: 9.0)", "A.q = 4.0")

case("cached property", """
import functools
class A:
    q = 2.0
    @functools.cached_property
    def twice(self):
        return self.q * 2
a = A()
@way
def f(x):
    return x * a.twice
""", "a.q = 3.0", "del a.twice", "a.q = 5.0; del a.twice", "a.twice = 7.0", "a = A(); a.q = 8.0")

case("descriptor", """
class D:
    value = 2.0
    def __get__(self, obj, kind=None):
        return self.value
    def __set__(self, obj, v):
        self.value = v * 2
class A:
    q = D()
a = A()
@way
def f(x):
    return x * a.q
""",
    "a.q = 3.0", "A.__dict__['q'].value = 5.0", "D.value = 6.0", "D.__get__ = lambda *s: 7.0",
    "a.__dict__['q'] = 8.0", "del D.__set__; a.__dict__['q'] = 8.0")  # fmt: skip

case("descriptor that counts", """
class D:
    n = 0
    def __get__(self, obj, kind=None):
        self.n += 1
        return self.n
class A:
    q = D()
a = A()
@way
def f(x):
    return x * a.q
""", "A.__dict__['q'].n = 10")

case("__getattr__", """
class A:
    def __init__(self):
        self.inner = {'q': 2.0}
    def __getattr__(self, name):
        return self.inner[name]
a = A()
@way
def f(x):
    return x * a.q
""", "a.inner['q'] = 3.0", "a.q = 4.0", "A.q = 5.0", "A.__getattr__ = lambda s, n: 6.0", "a.inner = {'q': 7.0}")

case("__getattribute__", """
table = {'q': 2.0}
class A:
    def __getattribute__(self, name):
        return table[name]
a = A()
@way
def f(x):
    return x * a.q
""", "table['q'] = 3.0", "A.__getattribute__ = object.__getattribute__; a.q = 4.0")

case("__setattr__", """
class A:
    def __setattr__(self, name, v):
        self.__dict__[name] = v * 2
a = A()
a.q = 1.0
@way
def f(x):
    a.r = x.shape[0]
    return x * a.q * a.r
""", "a.q = 3.0", "A.__setattr__ = lambda s, n, v: object.__setattr__(s, n, v)")

case("metaclass", """
class Meta(type):
    factor = 2.0
    @property
    def q(cls):
        return cls.factor
class A(metaclass=Meta):
    pass
@way
def f(x):
    return x * A.q
""", "Meta.factor = 3.0", "A.factor = 4.0", "Meta.q = 5.0", "Meta.__getattribute__ = lambda c, n: 6.0")

case("metaclass call", """
class Meta(type):
    scale = 2.0
    def __call__(cls, *a):
        made = super().__call__(*a)
        made.q = cls.scale
        return made
class A(metaclass=Meta):
    pass
@way
def f(x):
    return x * A().q
""", "Meta.scale = 3.0", "A.scale = 4.0", "Meta.__call__ = lambda c: type('B', (), {'q': 9.0})")

case("__instancecheck__", """
class Meta(type):
    yes = True
    def __instancecheck__(cls, o):
        return cls.yes
class A(metaclass=Meta):
    pass
@way
def f(x):
    return x * 2 if isinstance(x, A) else x
""", "Meta.yes = False", "A.yes = False")

case("dataclass", """
import dataclasses
@dataclasses.dataclass
class A:
    q: float = 2.0
    r: list = dataclasses.field(default_factory=list)
a = A()
@way
def f(x):
    return x * a.q + len(a.r)
""", "a.q = 3.0", "a.r.append(1)", "a = dataclasses.replace(a, q=5.0)", "A.q = 6.0; del a.q")

case("frozen dataclass", """
import dataclasses
@dataclasses.dataclass(frozen=True)
class A:
    q: float = 2.0
a = A()
@way
def f(x):
    return x * a.q
""", "object.__setattr__(a, 'q', 3.0)", "a = A(4.0)")

case("dataclass made inside", """
import dataclasses
scale = 2.0
@dataclasses.dataclass
class A:
    q: float = 2.0
    def __post_init__(self):
        self.q *= scale
@way
def f(x):
    return x * A(3.0).q
""", "scale = 4.0", "A.__post_init__ = lambda s: None", "A.__init__ = lambda s, q: setattr(s, 'q', 1.0)")

case("named tuple", """
import collections
P = collections.namedtuple('P', 'q r')
a = P(2.0, [1.0])
@way
def f(x):
    return P(x * a.q, a.r[0])
""", "a = a._replace(q=3.0)", "a.r[0] = 5.0", "P.q = property(lambda s: 9.0)")

case("enum", """
import enum
class Mode(enum.Enum):
    A = 1
    B = 2
mode = Mode.A
@way
def f(x):
    return x * mode.value if mode is Mode.A else x - mode.value
""", "mode = Mode.B", "Mode.A._value_ = 7", ("mode = Mode.B", "mode = Mode.A"))

case("enum by name", """
import enum
class Mode(enum.Enum):
    A = 1
    B = 2
name = 'A'
@way
def f(x):
    return x * Mode[name].value
""", "name = 'B'")
