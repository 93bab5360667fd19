"""Errors: those that are caught, those that come out, and what had been done before."""

from tests.batch.scenarios.harness import family

scenario, case = family("errors")

SETUP = """
w, emb, lin, log = weight(3), mod(nn.Embedding(4, 3)), mod(nn.Linear(3, 3)), []
total = wf.zeros(3).double()
ks = [0, 9, 2, -7]
class Stop(Exception):
    pass
"""
FAILS = {
    "index out of range": "y = x[ks[i]]",
    "index by a tensor out of range": "y = x[wf.tensor(ks[i])]",
    "index by a list out of range": "y = x[[0, ks[i]]].sum()",
    "index_select out of range": "y = x.index_select(0, wf.tensor([ks[i]]))",
    "embedding out of range": "y = emb(wf.tensor(ks[i])).sum()",
    "functional embedding out of range": "y = F.embedding(wf.tensor([ks[i]]), emb.weight).sum()",
    "gather out of range": "y = x.gather(0, wf.tensor([ks[i]]))",
    "take out of range": "y = wf.take(x, wf.tensor([ks[i]]))",
    "one_hot out of range": "y = F.one_hot(wf.tensor(ks[i]), 3).sum()",
    "one_hot of a negative": "y = F.one_hot(wf.tensor(-ks[i] + 2), 12).sum()",
    "cross_entropy out of range": "y = F.cross_entropy(lin(x), wf.tensor(ks[i]))",
    "nll_loss out of range": "y = F.nll_loss(lin(x).log_softmax(0), wf.tensor(ks[i]))",
    "cholesky of no such matrix": "y = wf.linalg.cholesky(wf.eye(3).double() * (1 if i % 2 == 0 else -1)) @ x",
    "inverse of a singular one": "y = wf.linalg.inv(wf.eye(3).double() * (i % 2 == 0)) @ x",
    "solve of a singular one": "y = wf.linalg.solve(wf.eye(3).double() * (i % 2 == 0), x)",
    "scatter out of range": "y = wf.zeros(3).double().scatter(0, wf.tensor([ks[i]]), x[:1]).sum()",
    "index_add out of range": "y = total.index_add(0, wf.tensor([ks[i]]), x[:1]).sum()",
    "own write out of range": "h = x * 1\nh[ks[i]] = 0\ny = h.sum()",
    "shared write out of range": "total[ks[i]] = 5.0\ny = total.sum()",
    "shapes": "y = x + wf.ones(3 if i % 2 == 0 else 4).double()",
    "matrix shapes": "y = lin(x if i % 2 == 0 else wf.cat([x, x]))",
    "view of a wrong size": "y = x.view(3 if i % 2 == 0 else 2)",
    "item of many": "y = (x if i % 2 else x[0]).item()",
    "bool of many": "y = 1 if (x if i % 2 else x[0]) > -9 else 2",
    "dtype": "y = wf.bitwise_and(x if i % 2 else wf.tensor(3), 1)",
    "assert on a value": "assert (x * w).sum() > 0.21, 'too small'\ny = x.sum()",
    "assert on isfinite": "y = (x.sqrt() * w).sum()\nassert wf.isfinite(y), 'not finite'",
    "raise on a value": "y = x.sum()\nif y < 0:\n    raise Stop(f'value {y.item():.3f}')",
    "raise on a number": "y = x.sum()\nif i % 2:\n    raise Stop('odd')",
    "raise in a late round": "y = x\nfor k in range(i + 1):\n    y = y * 2 if y.sum() > 0 else y + 1\nif i % 2:\n"
        "    raise Stop('odd')",
    "division by zero of Python": "y = x * (1 // (i % 2))",
    "key of a dict": "y = {0: x, 2: x * 2}[i]",
    "attribute": "y = x.nosuch if i == 1 else x",
    "backward of a vector": "y = x * w\nif i == 1:\n    y.backward()",
    "backward twice": "y = (x * w * w).sum()\ny.backward()\nif i == 1:\n    y.backward()",
    "numpy of what needs a gradient": "y = (x * w).numpy() if i % 2 else x",
    "multinomial of nothing": "y = wf.multinomial(wf.zeros(3) if i % 2 else wf.tensor([0.0, 1.0, 0.0]), 1)",
    "conv of too little": "y = F.conv1d(x[None, None] if i % 2 == 0 else x[None, None, :1], wf.ones(1, 1, 2).double())",
    "cat of unlike ones": "y = wf.cat([x, x[None] if i % 2 else x])",
    "stack of unlike ones": "y = wf.stack([x, x[:2] if i % 2 else x])",
    "topk of too many": "y = x.topk(2 if i % 2 == 0 else 5)[0]",
    "lstm cell of a wrong size": "y = nn.LSTMCell(3, 2).double()(x if i % 2 == 0 else x[:2])[0].sum() * 0",
}  # fmt: skip
for name, line in FAILS.items():
    random = name.startswith(("multinomial", "lstm"))
    body = "\n    ".join(line.split("\n"))
    case(name + ", caught", SETUP, f"""
try:
    {body}
except Exception as e:
    log.append((i, type(e).__name__))
    return x * 5
return y
""", "log, lin, emb, w", random=random)  # fmt: skip
    case(name + ", comes out", SETUP, f"total.add_(x.detach())\n{line}\nlog.append(i)\nreturn y", "w, lin, emb, log",
         raises=True, random=random)  # fmt: skip

for name, body, raises in [
    ("finally", "try:\n    y = x[ks[i]] * w\nfinally:\n    log.append(i)\nreturn y", True),
    ("finally after a caught one", "try:\n    y = emb(wf.tensor(ks[i]))\nexcept IndexError:\n    y = w * 2\nfinally:\n"
     "    log.append(i)\nreturn y", False),
    ("else", "try:\n    y = emb(wf.tensor(ks[i]))\nexcept IndexError:\n    return None\nelse:\n    return y * 2",
     False),
    ("raised from", "try:\n    y = emb(wf.tensor(ks[i])).sum()\nexcept IndexError as e:\n"
     "    raise Stop('mine') from e\n"
     "return y", True),
    ("suppress", "y = x\nwith contextlib.suppress(IndexError):\n    y = emb(wf.tensor(ks[i])) * 2\nreturn y", False),
    ("exit stack", "with contextlib.ExitStack() as s:\n    s.callback(log.append, i)\n    y = x * w\n    if i == 2:\n"
     "        raise Stop('in a with')\nreturn y", True),
    ("nested try", "try:\n    try:\n        y = emb(wf.tensor(ks[i]))\n    except ValueError:\n        y = x\n"
     "except IndexError:\n"
     "    y = x * 3\nreturn y", False),
    ("retry", "for k in (ks[i], 0):\n    try:\n        y = emb(wf.tensor(k)) * x\n        break\n"
     "    except IndexError:\n"
     "        log.append((i, k))\nreturn y", False),
    ("the error is returned", "try:\n    return emb(wf.tensor(ks[i]))\nexcept IndexError as e:\n    return e", False),
    ("first of two errors by order", "if i >= 1:\n    raise Stop(str(i))\nreturn x", True),
    ("first of two errors, the later one at once", "if i == 3:\n    raise Stop('late example, at once')\n"
     "if i == 1 and x.sum() < 99:\n"
     "    raise Stop('early example, after a look')\nreturn x", True),
    ("the later at once, the earlier by value", "if i == 3:\n    raise Stop('late')\nif i == 1:\n"
     "    return emb(wf.tensor(9))\n"
     "return x", True),
    ("state before the error", "total.add_(1)\nif i == 2:\n    raise Stop('two')\nreturn x", True),
    ("state before an error by value", "total.add_(1)\nif x.sum() < 0:\n    raise Stop('neg')\ntotal.add_(10)\n"
     "return x", True),
    ("log before the error", "log.append(i)\nif i == 1:\n    raise Stop('one')\nreturn x", True),
    ("log before an error by value", "log.append(i)\nif i == 1 and x.sum() < 99:\n    raise Stop('one')\n"
     "log.append(-i)\nreturn x", True),
    ("print before the error", "print('at', i)\nif i == 1:\n    raise Stop('one')\nreturn x", True),
    ("gradients before the error", "(x * w).sum().backward()\nif i == 2:\n    raise Stop('two')\nreturn None", True),
    ("StopIteration", "if i == 2:\n    raise StopIteration('end')\nreturn x", True),
    ("next of nothing", "return x * next(iter([2.0] if i != 2 else []))", True),
    ("next with a default", "return x * next(iter([]), 3.0)", False),
    ("GeneratorExit", "if i == 2:\n    raise RuntimeError('not a generator')\nreturn x", True),
    ("deep recursion that ends with an error", "def down(n):\n    if n == 150:\n        raise Stop('bottom')\n"
     "    return down(n + 1) + 1\n"
     "try:\n    down(0)\nexcept Stop:\n    return x * 2", False),
    ("one error and own class with arguments", "class Odd(ValueError):\n    def __init__(self, a, b):\n"
     "        super().__init__(a, b)\n"
     "if i == 1:\n    raise Odd(1, 'two')\nreturn x", True),
    ("error in a hook of forward", "lin.register_forward_hook(lambda m, a, o: 1 / 0) if i == 2 else None\n"
     "return lin(x)", True),
    ("anomaly mode around backward", "with wf.autograd.detect_anomaly():\n    y = (x.abs() * w).sum()\n"
     "    y.backward()\nreturn x", False),
    ("anomaly mode, found", "with wf.autograd.detect_anomaly():\n    y = ((x - x).sqrt() * x).sum()\n"
     "    y.backward()\nreturn x", True),
    ("anomaly mode, caught", "try:\n    with wf.autograd.detect_anomaly():\n"
     "        ((x - x.detach()).sqrt() * w).sum().backward()\n"
     "except Exception as e:\n    return type(e).__name__\nreturn x", False),
    ("exception group", "try:\n    emb(wf.tensor(ks[i])).sum().item()\nexcept IndexError as e:\n"
     "    raise ExceptionGroup('many', [e]) from None\n"
     "return x", True),
    ("error of all", "return emb(wf.tensor(99))", True),
    ("error of all, caught", "try:\n    return emb(wf.tensor(99))\nexcept IndexError:\n    return i", False),
    ("error of the last", "return emb(wf.tensor(99 if i == 3 else 1))", True),
    ("error of the first", "return emb(wf.tensor(99 if i == 0 else 1))", True),
    ("result never used", "emb(wf.tensor(ks[i]))\nreturn x", True),
    ("result never used, caught", "try:\n    emb(wf.tensor(ks[i]))\nexcept IndexError:\n    return None\nreturn x",
     False),
    ("a value checked by a helper", "def check(t):\n    if not bool(t.isfinite().all()):\n        raise Stop('bad')\n"
     "    return t\n"
     "return check(check(x * w).sqrt())", True),
    ("with block that restores", "old = list(log)\ntry:\n    log.append(i)\n    if i % 2:\n"
     "        emb(wf.tensor(9))\nexcept IndexError:\n"
     "    log[:] = old\nreturn x", False),
    ("KeyError then another map", "a = wf.map(lambda v: v * 2, [x, w])\nif i == 2:\n    raise KeyError('k')\n"
     "return a", True),
    ("error of an inner map", "return wf.map(lambda k: emb(wf.tensor(k)), [0, ks[i]])", True),
    ("error of an inner map, caught", "try:\n    return wf.map(lambda k: emb(wf.tensor(k)), [0, ks[i]])\n"
     "except IndexError:\n"
     "    return x", False),
    ("unequal lengths of an inner map", "return wf.map(lambda a, b: a, [1, 2], [1])", True),
    ("warnings of each", "import warnings\nwarnings.warn('mine')\nreturn x", False),
]:  # fmt: skip
    case(name, SETUP, body, "log, total, lin, emb, w", raises=raises)

for name, body in {
    "the layer is named": "return emb(wf.tensor(ks[i]))",
    "no layer is named": "return F.cross_entropy(lin(x), wf.tensor(ks[i]))",
    "the inner layer is named": "return nn.Sequential(lin, nn.Linear(4, 2).double())(x)",
}.items():
    case(name, SETUP, body, "w", raises=True, whole=True)
