"""What goes in and comes out: cells with tuples, structures, the same tensor twice, all kinds of callables."""

from tests.batch.scenarios.harness import family

scenario, case = family("forms")

CELLS = {
    "RNNCell": "nn.RNNCell(3, 2)", "LSTMCell": "nn.LSTMCell(3, 2)", "GRUCell": "nn.GRUCell(3, 2)",
    "Linear": "nn.Linear(3, 2)", "Tanh": "nn.Tanh()", "LayerNorm": "nn.LayerNorm(3)", "Identity": "nn.Identity()",
    "Bilinear": "nn.Bilinear(3, 3, 2)", "Sequential": "nn.Sequential(nn.Linear(3, 2), nn.Tanh())",
    "empty Sequential": "nn.Sequential()", "PReLU": "nn.PReLU()", "Softmax": "nn.Softmax(0)",
}  # fmt: skip
for name, made in CELLS.items():
    its = "[xs, xs]" if name == "Bilinear" else "[xs]"
    case(f"{name} itself", f"f = mod({made})\nxs = vecs()\nits = {its}", None, "f")
    if "Cell" in name:
        state = "(h, h * 2)" if name == "LSTMCell" else "h"
        loop = f"h = wf.zeros(2).double()\ns = {state}\nfor _ in range(i + 1):\n    s = cell(x, s)\n"
        case(f"{name} in a loop", f"cell = mod({made})", loop + "return s", "cell")
        case(f"{name}, only the first of its state", f"cell = mod({made})", loop + "return s[0]", "cell")
        case(f"{name}, state in a dict", f"cell = mod({made})", loop + "return {'s': s, 'n': i}", "cell")
        case(f"{name}, batch of rows", f"cell = mod({made})", "return cell(wf.stack([x, x * 2]))", "cell")
        case(f"{name}, until a value", f"cell = mod({made})",
             f"h = wf.zeros(2).double()\ns = {state}\nfor k in range(4):\n    s = cell(x, s)\n"
             "    if (s[0] if isinstance(s, tuple) else s).sum() > 0.2:\n        break\nreturn s, k",
             "cell")  # fmt: skip
for name, made, body in [
    ("BinaryTreeLSTMCell", "nn.BinaryTreeLSTMCell(3, 2)", "a = cell.leaf(x)\nreturn cell(a, a, x), a"),
    ("BinaryTreeLSTMCell without x", "nn.BinaryTreeLSTMCell(3, 2)", "a, b = cell.leaf(x), cell.leaf(x * 2)\n"
     "return cell(a, b)"),
    ("BinaryTreeLSTMCell, c only", "nn.BinaryTreeLSTMCell(3, 2)", "a = cell.leaf(x)\nh, c = cell(a, a)\nreturn c"),
    ("ChildSumTreeLSTMCell", "nn.ChildSumTreeLSTMCell(3, 2)", "k = [cell(x) for _ in range(i)]\nreturn cell(x, k), k"),
    ("LSTM", "nn.LSTM(3, 2)", "out, (h, c) = cell(x[None])\nreturn out, h, c"),
    ("GRU of a list", "nn.GRU(3, 2)", "out, h = cell(wf.stack([x] * (i + 1)))\nreturn out, h"),
    ("attention", "nn.MultiheadAttention(4, 2)", "q = F.pad(x, (0, 1))[None].expand(i + 1, 4)\nreturn cell(q, q, q)"),
    ("transformer layer", "nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0)",
     "return cell(F.pad(x, (0, 1))[None].expand(i + 1, 4) * 1)"),
    ("embedding bag", "nn.EmbeddingBag(5, 3)", "return cell(wf.arange(i + 1), wf.tensor([0]))"),
    ("module list", "nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])", "for m in cell:\n    x = m(x)\nreturn x"),
    ("module dict by example", "nn.ModuleDict({'a': nn.Linear(3, 2), 'b': nn.Linear(3, 2)})",
     "return cell['ab'[i % 2]](x)"),
    ("module by value", "nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])", "return cell[int(x.sum() > 0)](x)"),
    ("conv and pool", "nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.MaxPool1d(2))", "return cell(x[None, None])"),
    ("max pool with indices", "nn.MaxPool1d(2, return_indices=True)", "return cell(x[None, None])"),
]:  # fmt: skip
    case(name, f"cell = mod({made})", body, "cell")

for name, body in {
    "tuple": "return x * w, x + w",
    "list": "return [x * w, [x + w, [x]]]",
    "dict": "return {'a': x * w, 'b': {'c': x + w}, 3: None}",
    "dict values": "return {'a': x * w, 'b': x + w}.values().__class__.__name__, list({'a': x * w}.values())",
    "none": "x * w\nreturn None",
    "nothing": "x * w",
    "number": "return i",
    "text": "return f'{i}'",
    "mixed": "return i, 'a', x * w, None, 1.5, True, [x], (x * w).sum()",
    "same tensor twice": "h = x * w\nreturn h, h",
    "same tensor in a list": "h = x * w\nreturn [h] * 3, {'h': h}",
    "same tuple twice": "h = (x * w, x)\nreturn h, h",
    "tensor and its view": "h = x * w\nreturn h, h[1:], h.view(3, 1)",
    "tensor and its detach": "h = x * w\nreturn h, h.detach()",
    "input as it is": "return x",
    "input twice": "return x, x",
    "view of the input": "return x[1:], x.view(3, 1)",
    "detach of the input": "return x.detach()",
    "weight as it is": "return w",
    "weight view": "return w[i % 3 :]",
    "weight detached": "return w.detach()",
    "weight of a constant": "return w * 2",
    "constant": "return wf.ones(2)",
    "constant twice": "return wf.zeros(2) + 1, wf.arange(3)",
    "numpy result": "return (x * w).detach().numpy()",
    "item result": "return (x * w).sum().item()",
    "tolist result": "return (x * w).tolist()",
    "shape result": "return (x * w).shape, (x * w).size(0)",
    "namedtuple": "return Pair(x * w, x)",
    "namedtuple of torch kind": "return (x * w).max(0), (x * w).sort()",
    "dataclass": "return Data(x * w, [x + w])",
    "object": "o = Thing()\no.h = x * w\nreturn o",
    "object in a list": "o = Thing()\no.h = x * w\nreturn [o, o.h]",
    "set": "return {i, 'a'}",
    "frozen and range": "return frozenset([i]), range(i), slice(0, i)",
    "generator": "return (x * k for k in range(i))",
    "zip": "return list(zip(x * w, [1, 2, 3]))",
    "function": "h = x * w\nreturn (lambda: h * 2)()",
    "type of x": "return type(x * w), (x * w).dtype",
    "kept outside": "kept.append(x * w)\nreturn i",
    "kept in a dict": "box[i] = x * w\nreturn None",
    "kept on an object": "thing.last = x * w\nreturn x",
    "kept on the function": "f.last = x * w\nreturn x",
    "kept, and returned": "kept.append(x * w)\nreturn kept[-1]",
    "kept, and the one before": "kept.append(x * w)\nreturn kept[-2] + x if len(kept) > 1 else x",
    "kept, by a look": "kept.append((x * w).sum().item())\nreturn len(kept)",
    "kept after a look": "if (x * w).sum() > 0:\n    kept.append(i)\nreturn i",
    "kept after a look of some": "if i % 2 == 0:\n    (x * w).sum().item()\nkept.append(i)\nreturn i",
    "kept in order": "kept.append(('a', i))\n(x * w).sum().item()\nkept.append(('b', i))\nreturn x",
    "counted by a list": "kept.append(None)\nreturn x * len(kept)",
    "counted after a look": "(x * w).sum().item()\nkept.append(None)\nreturn x * len(kept)",
    "carried over": "h = box.get('h', x)\nbox['h'] = h * 0.5 + x\nreturn box['h']",
    "carried over, looked at": "h = box.get('h', x)\nbox['h'] = h * 0.5 + x\nreturn box['h'].sum().item()",
    "memo": "k = i % 2\nif k not in box:\n    box[k] = x * w\nreturn box[k] * 2",
    "memo by value": "k = int((x * w).sum() > 0.3)\nif k not in box:\n    box[k] = x * w\nreturn box[k]",
    "lru_cache": "return cached(i % 2) * x",
    "iterator shared": "return x * next(numbers)",
    "iterator shared after a look": "(x * w).sum().item()\nreturn x * next(numbers)",
    "queue": "box.setdefault('q', []).append(x * w)\nreturn box['q'].pop(0) + 1",
    "early return": "if i == 2:\n    return None\nreturn x * w",
    "early return by value": "if (x * w).sum() > 0.3:\n    return x\nreturn x * w",
}.items():  # fmt: skip
    case(name, """
import collections
import dataclasses
w, kept, box = weight(3), [], {}
Pair = collections.namedtuple("Pair", "a b")
numbers = iter(range(1, 100))
class Thing:
    pass
thing = Thing()
@dataclasses.dataclass
class Data:
    h: object
    rest: list
@functools.lru_cache(None)
def cached(k):
    return w * (k + 2)
""", body, "w, kept, box, thing")  # fmt: skip

for name, setup in {
    "lambda": "f = lambda x: x * w",
    "bound method": "f = w.mul",
    "method of a class": "class A:\n    def go(self, x):\n        return x * w\nf = A().go",
    "callable object": "class A:\n    def __call__(self, x):\n        return x * w\nf = A()",
    "partial": "f = functools.partial(wf.mul, w)",
    "partial with keywords": "def g(x, k=1.0):\n    return x * k * w\nf = functools.partial(g, k=2.0)",
    "library function": "f = wf.tanh",
    "method of Tensor": "f = wf.Tensor.exp",
    "builtin": "f = len",
    "float": "f = lambda x: float(x.sum())",
    "generator function": "def f(x):\n    for k in range(3):\n        yield x * k",
    "generator function with looks": "def f(x):\n    while x.sum() < 3:\n        x = x + 1\n        yield x",
    "default argument": "def f(x, w=w):\n    return x * w",
    "star arguments": "def f(*a):\n    return a[0] * w, len(a)",
    "recursion": "def f(x, n=3):\n    return x if n == 0 else f(x * w, n - 1)",
    "mutual recursion": "def f(x, n=3):\n    return x if n == 0 else g(x * w, n - 1)\ndef g(x, n):\n"
        "    return x + w if n == 0 else f(x, n - 1)",
    "decorated": "def deco(g):\n    @functools.wraps(g)\n    def h(*a):\n        return g(*a) * 2\n    return h\n"
        "@deco\ndef f(x):\n    return x * w",
    "class as function": "class f:\n    def __init__(self, x):\n        self.h = x * w",
    "closure over a list": "ks = [1.0, 2.0]\nf = lambda x: [x * k for k in ks]",
    "no examples": "f = lambda x: x * w\nxs = []",
    "one example": "f = lambda x: x * w\nxs = vecs(1)",
    "many examples": "f = lambda x: (x * w).tanh()\nxs = vecs(40)",
    "the same example many times": "f = lambda x: x * w\nxs = vecs(1) * 4",
    "rows of one tensor": "f = lambda x: x * w\nxs = list(num(4, 3, grad=True))",
    "rows of one leaf": "T = num(4, 3, grad=True)\nf = lambda x: x * w\nxs = list(T)",
    "numbers": "f = lambda x: w * x\nxs = [1, 2.5, True]",
    "texts": "f = lambda x: w * len(x)\nxs = ['a', 'bcd', '']",
    "arrays": "f = lambda x: wf.from_numpy(x) * w\nxs = [np.ones(3), np.arange(3.0)]",
    "mixed shapes": "f = lambda x: (x.sum() * w, x.shape)\nxs = [num(k, grad=True) for k in (1, 3, 2, 0, 3)]",
    "mixed dtypes": "f = lambda x: x * w\nxs = [wf.ones(3), wf.ones(3).long(), wf.ones(3).half(), wf.ones(3) > 0]",
    "mixed gradients": "f = lambda x: x * 2\nxs = [num(3, grad=k % 2 == 0) for k in range(4)]",
    "dicts": "f = lambda x: x['a'] * w\nxs = [{'a': num(3, seed=k, grad=True)} for k in range(3)]",
    "dicts written": "def f(x):\n    x['h'] = x['a'] * w\n    return len(x)\n"
        "xs = [{'a': num(3, seed=k)} for k in range(3)]",
    "lists emptied": "def f(x):\n    s = x.pop()\n    while x:\n        s = s * w + x.pop()\n    return s\n"
        "xs = [vecs(k) for k in (1, 3, 2)]",
}.items():  # fmt: skip
    more = "" if "xs =" in setup else "\nxs = vecs()"
    without = "twice" if "emptied" in name else ()
    case(f"called, {name}", f"w = weight(3)\n{setup}{more}\nits = [xs]", None, "w", without=without)
case("called, several iterables", "w = weight(3)\nits = [vecs(3), [1, 2, 3], 'abc']\ndef f(x, k, s):\n"
     "    return x * k * w, s",
     None, "w")  # fmt: skip
