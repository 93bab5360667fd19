"""Containers, NumPy memory, numbers that change, shapes and dtypes that change."""

from tests.compiler.hostile.harness import family

case = family("containers")

# -- containers given and returned -----------------------------------------------------------------------------------

for name, given, body, *changes in [
    ("list returned", "[num(3), num(3, seed=1)]", "given.append(x)\n    return given", "given.clear()", "given = []"),
    ("list returned, not changed", "[num(3), 2.0]", "return given", "given[0] = num(3, seed=5)", "given.append(1)"),
    ("list written", "[num(3), num(3, seed=1)]", "given[0] = x.detach() * 2\n    return given[1]", "given.reverse()"),
    ("list sorted", "[3.0, 1.0, 2.0]", "given.sort()\n    return x * given[0]", "given.append(0.5)",
     "given[:] = [9.0]"),
    ("list emptied", "[1.0, 2.0]", "given.clear()\n    return x", "given.append(3.0)", "each: given = [k]"),
    ("list extended", "[1.0]", "given.extend([2.0, x.sum()])\n    return len(given)", "given = [1.0]",
     "each: given = [1.0]"),
    ("dict returned", "{'a': num(3)}", "given['b'] = x\n    return given", "given.pop('b', None)",
     "given = {'a': num(3)}"),
    ("dict written", "{'a': num(3)}", "given['a'] = given['a'] + x\n    return x", "given['a'] = num(3, seed=4)",
     "each: given = {'a': num(3, seed=k)}"),
    ("dict of parameters", "{'w': num(3, grad=True), 'b': num(3)}", "return x * given['w'] + given['b']",
     "given['w'] = num(3, seed=4, grad=True)", "given['b'].requires_grad_()", "given['w'].data.zero_()",
     "given = dict(reversed(list(given.items())))", "given['w'] = given['b']"),
    ("dict updated", "{}", "given.update(a=x.shape[0], b=given.get('a'))\n    return x * given['a']", "given.clear()"),
    ("setdefault", "{}", "return x * given.setdefault('a', 2.0)", "given['a'] = 5.0", "given.clear()"),
    ("popitem", "{i: float(i) for i in range(40)}", "return x * given.popitem()[1]", "given[99] = 99.0"),
    ("tuple of tensors", "(num(3), num(3, seed=1))", "given[0].add_(x)\n    return given", "given = given[::-1]",
     "given = (given[0], given[0])", "given = (given[0], given[0][:])"),
    ("nested", "{'a': [num(3), {'b': (num(3, seed=1),)}]}", "return x * given['a'][1]['b'][0], given['a']",
     "given['a'][0] = num(3, seed=2)", "given['a'][1]['b'] = (num(3, seed=7), 3)", "given['a'].append(None)"),
    ("named tuple", "P(num(3), 2.0)", "return given._replace(b=x * given.b)", "given = P(num(3), 4.0)",
     "given = P(num(3, seed=2), num(3))"),
    ("data class", "D(2.0, [1.0])", "given.a += 1\n    return x * given.a", "given.a = 7.0", "given = D(5.0, [])"),
    ("data class returned", "D(2.0, [1.0])", "given.b.append(x.sum())\n    return given", "given.b.clear()"),
    ("own object", "O(2.0)", "given.q = given.q + 1\n    return x * given.q", "given.q = 0.0", "given = O(9.0)"),
    ("own object returned", "O(num(3))", "return given", "given.q = x0", "given = O(1)"),
    ("ordered dict", "collections.OrderedDict(a=1.0, b=2.0)", "return x * next(iter(given.values()))",
     "given.move_to_end('a')", "given['c'] = 1"),
    ("ordered dict written", "collections.OrderedDict(a=1.0, b=2.0)",
     "given.move_to_end(next(iter(given)))\n    return x * next(iter(given.values())), given", "given['c'] = 3.0"),
    ("default dict", "collections.defaultdict(lambda: 2.0)", "return x * given['new'] * len(given)",
     "given['new'] = 3.0", "given.clear()", "given.default_factory = lambda: 5.0; given.clear()"),
    ("deque", "collections.deque([1.0, 2.0, 3.0], maxlen=4)", "given.append(x.shape[0])\n    return x * given[0]",
     "given.rotate(1)", "given.clear()"),
    ("deque rotated", "collections.deque([1.0, 2.0, 3.0])", "given.rotate(1)\n    return x * given[0]",
     "given.appendleft(9.0)"),
    ("counter", "collections.Counter('aab')", "given['a'] += 1\n    return x * given['a']", "given['a'] = 0"),
    ("chain map", "collections.ChainMap({'a': 1.0}, {'b': 2.0})", "return x * given['b']", "given.maps[1]['b'] = 5.0",
     "given['b'] = 7.0"),
    ("set", "{1, 2}", "given.add(len(given) + 1)\n    return x * len(given)", "given.clear()", "given = {7}"),
    ("frozen set", "frozenset({1, 2})", "return x * sum(given)", "given = frozenset({1, 2, 3})"),
    ("range", "range(3)", "return sum(x * i for i in given)", "given = range(1, 4)", "each: given = range(k % 4 + 1)"),
    ("slice", "slice(0, 2)", "return x[given]", "given = slice(1, 3)", "each: given = slice(k % 2, 3)"),
    ("ellipsis and none", "(..., None)", "return x[given]", "given = (None, ...)"),
    ("bytes", "b'ab'", "return x * len(given) + given[0]", "given = b'abc'"),
    ("complex", "2 + 1j", "return x * given.real + given.imag", "given = 3 - 1j"),
    ("string", "'abc'", "return x * len(given) if given[0] == 'a' else x", "given = 'abcd'", "given = 'b'",
     "each: given = 'ab'[k % 2] * k"),
    ("dtype", "wf.float64", "return x.to(given)", "given = wf.float32",
     "each: given = (wf.float64, wf.float32, wf.int64)[k % 3]"),
    ("function", "wf.sin", "return given(x)", "given = wf.cos", "given = lambda v: v * 2",
     "each: given = (wf.sin, wf.cos, lambda v: v)[k % 3]"),
    ("fresh function at each call", "None", "return given(x)", "each: given = lambda v, q=k: v * q"),
    ("fresh closure at each call", "None", "return given(x)", "each: given = (lambda q: lambda v: v * q)(k)"),
    ("class", "wf.Tensor", "return x * 2 if isinstance(x, given) else x", "given = int"),
    ("module", "nn.Linear(3, 3)", "return given(x)", "given = nn.Linear(3, 3)", "given = nn.Linear(3, 2)",
     "given = nn.Tanh()", "each: given = nn.Linear(3, 3)"),
    ("module list", "[nn.Linear(3, 3), nn.Tanh()]", "for m in given:\n        x = m(x)\n    return x",
     "given.reverse()", "given.append(nn.Linear(3, 1))", "given[0] = given[1]"),
    ("parameter", "nn.Parameter(num(3))", "return x * given", "given = nn.Parameter(num(3, seed=2))", "given = num(3)",
     "given.requires_grad_(False)"),
    ("same list inside", "2 * [[num(3)]]", "given[0].append(x)\n    return len(given[1])", "given[1] = [num(3)]",
     "given = [[num(3)], [num(3)]]"),
    ("iterator", "iter([1.0] * 50)", "return x * next(given)", "given = iter([2.0] * 50)", "next(given)"),
    ("generator", "(float(i) for i in range(50))", "return x * next(given)",
     "given = (float(i) * 3 for i in range(50))"),
    ("size", "num(3).shape", "return x.reshape(given)", "given = wf.Size([1, 3])"),
    ("proxy", "types.MappingProxyType(inner)", "return x * given['a']", "inner['a'] = 3.0",
     "given = types.MappingProxyType({'a': 5.0})"),
    ("list of its own kind", "L([1.0, 2.0])", "given.append(3.0)\n    return x * given[0] + given.extra",
     "given.extra = 5", "given[0] = 9.0", "L.extra = 7", "L.__getitem__ = lambda s, i: 4.0"),
    ("dict of its own kind", "K(a=1.0)", "return x * given['a'] + given['zz']", "given['a'] = 9.0",
     "given['zz'] = 1.0", "K.__missing__ = lambda s, k: 4.0"),
]:  # fmt: skip
    setup = f"""
import collections, dataclasses, types
P = collections.namedtuple("P", "a b")
@dataclasses.dataclass
class D:
    a: float
    b: list
class O:
    def __init__(self, q):
        self.q = q
class L(list):
    extra = 1
class K(dict):
    def __missing__(self, key):
        return 2.0
x0, inner = num(3), {{"a": 2.0}}
given = {given}
@way
"""
    case(
        f"argument: {name}", setup + f"def f(x, given):\n    {body}\n", *changes,
        args="num(3, seed=k, grad=True), given")  # fmt: skip
    if name in ("list returned", "dict returned", "nested", "own object returned", "named tuple", "tuple of tensors"):
        case(f"captured: {name}", setup + f"def f(x):\n    {body}\n", *changes, args="num(3, seed=k, grad=True),")

number = family("numbers")

# -- a new number at each call ---------------------------------------------------------------------------------------

NUMBERS = [
    "k", "k * 0.37", "k % 2 == 0", "-k", "k % 3", "float(k)", "np.float64(k)", "np.int64(k)", "10 ** k",
    "k / 7 if k % 2 else k",
]  # fmt: skip
for name, body in [
    ("factor", "return x * i"), ("added", "return x + i, i"), ("power", "return x.abs() ** i"),
    ("divided", "return x / (i + 0.5)"), ("branch", "return x * 2 if i > 5 else x - i * 1.0"),
    ("branch on parity", "return x if int(i) % 2 else x * 3"), ("index", "return x[int(i) % 3]"),
    ("range", "for j in range(int(i) % 4):\n        x = x + j\n    return x"), ("slice", "return x[: int(i) % 4]"),
    ("returned", "return i, x"), ("math", "return x * math.sin(i) + math.floor(i)"),
    ("schedule", "lr = 0.1 * 0.5 ** (i // 3) if i < 9 else 0.01\n    return x * lr"),
    ("cosine", "return x * 0.5 * (1 + math.cos(math.pi * min(max(i, 0), 20) / 20))"),
    ("full", "return wf.full((2,), float(i)) + x.sum()"), ("arange", "return wf.arange(int(i) % 5 + 1) * x.sum()"),
    ("tensor", "return wf.tensor(float(i)) * x"), ("fill", "y = x.clone()\n    y.fill_(i)\n    return y"),
    ("clamp", "return x.clamp(-abs(i) / 5, abs(i) / 5)"), ("where", "return wf.where(x > i / 10, x, -x)"),
    ("in place", "total.add_(x.detach() * i)\n    return total.sum()"), ("text", "return x * len(str(i)), f'{i}'"),
    ("compared with a value", "return x if x.sum() > i else -x"), ("roll", "return wf.roll(x, int(i))"),
    ("dropout", "return F.dropout(x, abs(float(i)) % 1.0, True)"), ("reshape", "return x.repeat(int(i) % 3 + 1)"),
    ("threshold list", "return x * [1.0, 2.0, 3.0][int(i) % 3] * {0: 1.0, 1: 5.0}[int(i) % 2]"),
    ("seed", "wf.manual_seed(abs(int(i)))\n    return x + wf.randn(3)"),
    ("equal", "return x * 2 if i == 4 else x"), ("type", "return x * (2 if isinstance(i, float) else 3)"),
    ("hash", "return x * ({1: 2.0}.get(i, 1.0))"),
    ("lerp", "return total.lerp(x.detach(), min(max(i / 20, 0), 1))"),
    ("scalar exponent", "return (1 - 0.9 ** min(abs(i), 50)) * x"),
]:  # fmt: skip
    picked = [NUMBERS[len(name) % 3], NUMBERS[3 + len(body) % 7]]
    if name in ("factor", "branch", "returned", "in place"):
        picked = NUMBERS
    for value in picked:
        number(
            f"{name}: {value}", f"total = num(3)\n@way\ndef f(x, i):\n    {body}\n",
            args=f"num(3, seed=k, grad=True), {value}")  # fmt: skip

shape = family("shapes")

for name, body in [
    ("affine", "return lin(x).tanh()"), ("mean", "return x.mean(0) * w"),
    ("loop over rows", "return sum(row.sin() for row in x)"), ("size read", "return x * x.shape[0] + len(x)"),
    ("branch on size", "return x * 2 if x.shape[0] > 2 else x.sum()"),
    ("zeros", "return x + wf.zeros(x.shape) + wf.ones_like(x)"),
    ("step",
     "opt.zero_grad()\n    y = lin(x).square().mean()\n    y.backward()\n    opt.step()\n    return y.detach()"),
    ("cat", "return wf.cat([x, w.expand(2, 3)])"), ("written", "x.detach()[0] = 0\n    return x * w"),
    ("softmax", "return F.softmax(x, 0), x.argmax(0)"),
    ("buffer grows", "global kept\n    kept = wf.cat([kept, x.detach()])\n    return kept.sum() + x"),
]:  # fmt: skip
    for rows in ("k", "k % 3 + 1", "2 if k < 6 else 5", "(1, 4)[k % 2]", "0 if k == 5 else 3"):
        shape(f"{name}: {rows} rows", f"""
w, lin = num(3, grad=True), nn.Linear(3, 2)
opt, kept = wf.optim.Adam(lin.parameters(), lr=0.1), num(1, 3)
@way
def f(x):
    {body}
""", args=f"num({rows}, 3, seed=k, grad=True),", fails="0 if" in rows)  # fmt: skip

for name, given in [
    ("dtype", "num(3, seed=k).to((wf.float64, wf.float32, wf.int64)[k % 3])"),
    ("bool", "num(3, seed=k) > 0 if k % 3 == 0 else num(3, seed=k)"),
    ("requires_grad", "num(3, seed=k, grad=k % 3 == 0)"),
    ("made", "num(3, seed=k, grad=True) * 2 if k % 2 else num(3, seed=k, grad=True)"),
    ("dimensions", "num(*([3] * (k % 3 + 1)), seed=k)"),
    ("strides", "num(3, 3, seed=k).T if k % 2 else num(3, 3, seed=k)"),
    ("expanded", "num(1, seed=k).expand(3) if k % 2 else num(3)"),
    ("inference", "inference(k) if k % 3 == 0 else num(3, seed=k)"),
    ("number", "num(3, seed=k) if k % 3 else 2.5"), ("array", "num(3, seed=k) if k % 3 else np.ones(3)"),
    ("parameter", "nn.Parameter(num(3, seed=k)) if k % 2 else num(3, seed=k)"),
    ("list", "[num(3), num(3)][: 1 + k % 2]"), ("captured itself", "w if k % 3 == 0 else num(3, seed=k)"),
    ("alternating sizes", "num(3, 3, seed=k) if k % 4 == 1 else num(1, 3, seed=k) if k % 4 == 2 else num(3)"),
]:  # fmt: skip
    for body in ("return x * w", "return F.relu(x) if x.sum() > 0 else x", "y = x * w\n    y.add_(1)\n    return y, x"):
        shape(f"{name}: {body[:20].splitlines()[0]}", f"""
w = num(3, grad=True)
def inference(k):
    with wf.inference_mode():
        return num(3, seed=k)
@way
def f(x):
    {body}
""", args=f"{given},", fails=True)  # fmt: skip
