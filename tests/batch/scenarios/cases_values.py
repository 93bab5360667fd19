"""Values that decide: NaN and infinity whose loss is dropped, branches, looks at numbers in the middle."""

from tests.batch.scenarios.harness import family

scenario, case = family("values")

BAD = "xs = [num(3, seed=k, grad=True) for k in range(5)]\nwith wf.no_grad():\n    xs[1].fill_({value})\n"
LIN = "lin = mod(nn.Linear(3, 3))\nw = weight(3)\n"

# One example gives NaN or infinity; its loss is not added, and nobody else may see it in their gradients.
for name, value, line in [
    ("sqrt of negative", -1.0, "y = x.sqrt() * w"),
    ("log of zero", 0.0, "y = x.log() * w"),
    ("one over zero", 0.0, "y = w / x"),
    ("zero over zero", 0.0, "y = (w * x) / (x * w)"),
    ("exp overflows", 800.0, "y = (x.exp() * w).tanh()"),
    ("huge power", 1e200, "y = (x * w) ** 3"),
    ("nan comes in", "float('nan')", "y = lin(x).tanh() * w"),
    ("inf comes in", "float('inf')", "y = lin(x).sigmoid() + w"),
    ("norm of zero", 0.0, "y = x / x.norm() * w"),
    ("softmax of inf", "float('inf')", "y = x.softmax(0) @ w"),
    ("log_softmax of minus inf", "float('-inf')", "y = x.log_softmax(0) * w"),
    ("acos outside", 2.0, "y = x.acos() * w"),
    ("matrix of nan", "float('nan')", "y = (lin.weight @ x[:, None]).squeeze(1)"),
    ("cumsum of nan", "float('nan')", "y = x.cumsum(0) * w"),
    ("std of equal numbers", 1.0, "y = x.std() * w"),
    ("variance of one", 1.0, "y = x[:1].var() * w"),
    ("layer norm of nan", "float('nan')", "y = F.layer_norm(x, (3,), w)"),
    ("linear of a stack", "float('nan')", "y = lin(wf.stack([x, x + 1])).sum(0) * w"),
    ("loss of nan", "float('nan')", "y = F.cross_entropy(lin(x), wf.tensor(1)) * w"),
    ("where guards", -1.0, "y = wf.where(x > 0, x, 1.0).sqrt() * w"),
    ("where does not guard", -1.0, "y = wf.where(x > 0, x.sqrt(), 0.0) * w"),
]:
    setup = BAD.format(value=value) + LIN
    case(name + ", returned", setup, line + "\nreturn y.sum()", "lin, w, xs")
    case(name + ", dropped", setup, line + "\ny = y.sum()\nreturn y if bool(wf.isfinite(y)) else None", "lin, w, xs")
for name, value, line in [
    ("dropped by Python", -1.0, "y = (x.sqrt() * w).sum()\nreturn y if i != 1 else None"),
    ("dropped by detach", -1.0, "y = (x.sqrt() * w).sum()\nreturn y if i != 1 else y.detach()"),
    ("kept outside", -1.0, "y = x.sqrt() * w\nkept.append(y)\nreturn (x * w).sum()"),
    ("part of an example dropped", -1.0, "a, b = x.sqrt() * w, x * w\nreturn b"),
    ("multiplied by zero", "float('nan')", "y = lin(x) * w\nreturn y * (0.0 if i == 1 else 1.0)"),
    ("nan_to_num", "float('nan')", "return (lin(x) * w).nan_to_num(0.0)"),
    ("index of good ones", "float('nan')", "y = wf.stack([x * w, w * 2])\nreturn y[~y.isnan().any(1)].sum(0)"),
    ("lstm cell", "float('nan')", "h, c = cell(x)\nreturn None if h.isnan().any() else h"),
    ("gru cell, by Python", "float('nan')", "h = gru(x)\nreturn None if i == 1 else h"),
    ("tree cell, by Python", "float('inf')", "h, c = tree.leaf(x)\nh, c = tree((h, c), (h, c))\n"
     "return None if i == 1 else h"),
    ("embedding row of nan", 0.0, "e = emb(wf.tensor(i))\nreturn None if i == 2 else (e * w).sum()"),
    ("sequential, by Python", -1e300, "h = seq(x * 1e10)\nreturn None if i == 1 else h"),
    ("fused, by Python", -1.0, "h = fus(x, w)\nreturn None if i == 1 else h"),
    ("fused, by value", -1.0, "h = fus(x, w)\nreturn None if h.sum().isnan() else h"),
    ("compiled, by Python", -1.0, "h = com(x, w)\nreturn None if i == 1 else h"),
    ("compiled, by value", -1.0, "h = com(x, w)\nreturn None if h.sum().isnan() else h"),
    ("attention, by Python", "float('nan')", "a = (x[:, None] * x).softmax(1) @ w\nreturn None if i == 1 else a"),
    ("batched matmul, by Python", "float('inf')", "m = lin.weight * x\nreturn None if i == 1 else m @ w"),
    ("norm layer, by Python", "float('nan')", "h = norm(x)\nreturn None if i == 1 else h"),
    ("conv, by Python", "float('nan')", "h = conv(x[None, None])\nreturn None if i == 1 else h"),
    ("shared sum, by Python", "float('nan')", "y = w.sum() * x.sum()\nreturn None if i == 1 else y"),
    ("broadcast, by Python", "float('inf')", "y = (w[:, None] + x) * w\nreturn None if i == 1 else y"),
    ("exp of a shared one, by Python", "float('inf')", "y = w.exp() * x\nreturn None if i == 1 else y"),
    ("division by a shared one, by Python", "float('nan')", "y = x / w\nreturn None if i == 1 else y"),
]:
    more = ""
    for word, made in {
        "cell(": "cell = mod(nn.LSTMCell(3, 3))", "gru(": "gru = mod(nn.GRUCell(3, 3))",
        "tree": "tree = mod(nn.BinaryTreeLSTMCell(3, 3))",
        "emb(": "emb = mod(nn.Embedding(5, 3))\nwith wf.no_grad():\n    emb.weight[2] = float('nan')",
        "seq(": "seq = mod(nn.Sequential(nn.Linear(3, 3), nn.Softplus(), nn.Linear(3, 2)))",
        "fus(": "@wf.fused\ndef fus(x, w):\n    return (x.sqrt() * w).tanh() + w",
        "com(": "@wf.compile\ndef com(x, w):\n    return (x.sqrt() * w).tanh() + w",
        "norm(": "norm = mod(nn.LayerNorm(3))", "conv(": "conv = mod(nn.Conv1d(1, 2, 2))", "kept": "kept = []",
    }.items():  # fmt: skip
        if word in line:
            more += made + "\n"
    names = [w for w in ("cell", "gru", "tree", "emb", "seq", "norm", "conv", "kept") if w + " =" in more]
    case(name, BAD.format(value=value) + LIN + more, line, ", ".join(["lin, w, xs", *names]))

# Branches on values, and looks at them.
for name, body in {
    "if on a sum": "return x * 2 if x.sum() > 0 else x.tanh()",
    "while on a norm": "while x.norm() > 1:\n    x = x * 0.5\nreturn x",
    "for over a count": "for _ in range(int((x > 0).sum())):\n    x = x * w\nreturn x",
    "for over a tensor": "s = 0\nfor v in x:\n    s = s * 0.5 + v * w[0]\nreturn s",
    "for over rows": "return [r @ w for r in (x[:, None] * w)]",
    "enumerate a tensor": "return sum(k * v for k, v in enumerate(x))",
    "zip of tensors": "return [a * b for a, b in zip(x, w)]",
    "unpack": "a, b, c = x * w\nreturn a + b, c",
    "star": "first, *rest = x * w\nreturn first, rest",
    "sorted": "return sorted(x.tolist()), max(x * w), min(x).item()",
    "sum builtin": "return sum(x * w)",
    "any and all": "return any(x > 0), all((x > -9).tolist()), bool((x > 0).all())",
    "in": "return 0.5 in x.detach(), (x * 0 + 0.5).tolist() == [0.5] * 3, (0.5 in x * 0 + 0.5)",
    "list of a tensor": "return list(x * w)",
    "len and range": "return [x[k] * k for k in range(len(x))]",
    "dict by value": "return {int(k): x[k] * w for k in x.argsort()[:2]}",
    "chained comparison": "return x if -1 < x.sum() < 1 else x * 3",
    "and, or, not": "return (x.sum() > 0 and x * 2) if not (x[0] > 0 or x[1] > 9) else x",
    "max of two": "return max(x.sum(), (x * w).sum())",
    "abs, round, divmod": "return abs(x), round(x.sum().item(), 3), x // 0.3, x % 0.3, divmod(x.sum().item(), 0.3)",
    "float and int": "return float(x[0]), int(x[1] * 10), complex(1).real + x",
    "index by a tensor": "return [w, w * 2, w * 3][(x.argmax())] * x",
    "slice by a tensor": "return x[: x.argmax() + 1].sum() * w",
    "range by a tensor": "return [x * k for k in range(x.argmax() + 1)]",
    "match": "match int(x.argmax()):\n    case 0:\n        return x * 2\n    case 1:\n        return x + w\n"
        "    case _:\n        return x.exp()",
    "walrus": "return y if (y := (x * w).sum()) > 0 else -y",
    "assert holds": "assert (x == x).all(), 'nan'\nreturn x * w",
    "item twice": "s = x.sum()\nreturn s.item() + s.item(), s * w",
    "tolist twice": "h = x * w\nreturn h.tolist(), h.tolist(), h",
    "numpy twice": "h = (x * w).detach()\na, b = h.numpy(), h.numpy()\na[0] = 5\nreturn b, h, np.shares_memory(a, b)",
    "numpy written, then read": "h = (x * w).detach()\nh.numpy()[:] = 1\nreturn h * x",
    "numpy of a view": "h = (x * w).detach()\nh[1:].numpy()[:] = 1\nreturn h * x",
    "numpy function": "return np.asarray((x * w).detach()).sum(), np.max((x * w).detach().numpy())",
    "format": "h = x * w\nreturn f'{h.sum():.4f}', f'{h[0].item():8.3f}', str(h.shape)",
    "print a sum": "print(f'{(x * w).sum().item():.4f}')\nreturn x",
    "print twice": "print(i, 'start')\nprint(i, f'{(x * w).sum().item():.4f}')\nreturn x",
    "repr": "h = (x * w).detach()\nreturn repr(h), str(h[0])",
    "argmax then one hot": "return F.one_hot(x.argmax(), 3) * x",
    "topk": "v, k = x.topk(2)\nreturn v * w[k], k.tolist()",
    "nonzero": "return x[(x > 0).nonzero().squeeze(1)] * 2",
    "masked_select": "return wf.masked_select(x * w, x > 0)",
    "unique": "return wf.unique((x * 2).round()), x",
    "where with one": "(k,) = wf.where(x > 0)\nreturn k, x[k]",
    "equal": "return wf.equal(x, w), wf.equal(x * 1, x), wf.allclose(x * 1, x)",
    "bisect": "lo, hi = wf.zeros(()).double(), wf.full((), 4.0).double()\nfor _ in range(5):\n    mid = (lo + hi) / 2\n"
              "    lo, hi = (mid, hi) if mid * mid < x[0].abs() else (lo, mid)\nreturn lo",
    "newton until small": "y = x.abs() + 1\nz = y\nfor k in range(9):\n    n = (z + y / z) / 2\n"
        "    if (n - z).abs().max() < 1e-3:\n"
                          "        break\n    z = n\nreturn z, k",
    "for else": "for k in range(5):\n    if x.sum() * k > 1:\n        break\nelse:\n    return x * w\nreturn x, k",
}.items():  # fmt: skip
    case(name, "w = weight(3)", body, "w")
