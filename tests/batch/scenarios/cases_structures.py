"""Programs that follow their data: trees, sequences, graphs, Viterbi, stacks, beams, attention over lengths."""

from tests.batch.scenarios.harness import family

scenario, case = family("structures")

TREES = """
emb, cell, lin = mod(nn.Embedding(6, 3)), mod(nn.BinaryTreeLSTMCell(3, 3)), mod(nn.Linear(6, 3))
xs = [((0, 1), 2), 3, ((4, (5, 0)), (1, 2)), (2, 2)]
class Node:
    def __init__(self, t):
        self.word = t if isinstance(t, int) else None
        self.kids = [] if isinstance(t, int) else [Node(k) for k in t]
        self.h = None
nodes = [Node(t) for t in xs]
"""
for name, body, its in [
    ("fold by cat", "def go(t):\n"
     "    return emb(wf.tensor(t)) if isinstance(t, int) else lin(wf.cat([go(t[0]), go(t[1])])).tanh()\n"
     "return go(x)", ""),
    ("fold by cell", "def go(t):\n"
     "    return cell.leaf(emb(wf.tensor(t))) if isinstance(t, int) else cell(go(t[0]), go(t[1]))\nreturn go(x)[0]",
     ""),
    ("all states", "out = []\ndef go(t):\n"
     "    h = emb(wf.tensor(t)) if isinstance(t, int) else lin(wf.cat([go(k) for k in t])).tanh()\n"
     "    out.append(h)\n    return h\ngo(x)\nreturn out", ""),
    ("states on the nodes", "def go(n):\n    for k in n.kids:\n        go(k)\n"
     "    n.h = lin(wf.cat([k.h for k in n.kids])).tanh() if n.kids else "
     "emb(wf.tensor(n.word))\ngo(x)\nreturn x.h", "its = [nodes, range(4)]"),
    ("states on the nodes, looked at", "def go(n):\n    for k in n.kids:\n        go(k)\n"
     "    n.h = lin(wf.cat([k.h for k in n.kids])).tanh() if n.kids "
     "else emb(wf.tensor(n.word))\n    n.s = n.h.sum().item()\ngo(x)\nreturn x.h", "its = [nodes, range(4)]"),
    ("stop at a value", "def go(t):\n    if isinstance(t, int):\n        return emb(wf.tensor(t))\n    a = go(t[0])\n"
     "    return a if a.sum() > 0 else lin(wf.cat([a, go(t[1])]))\nreturn go(x)", ""),
    ("memo of subtrees", "memo = {}\ndef go(t):\n    if t not in memo:\n"
     "        memo[t] = emb(wf.tensor(t)) if isinstance(t, int) else "
     "lin(wf.cat([go(t[0]), go(t[1])]))\n    return memo[t]\nreturn go(x)", ""),
    ("memo of subtrees, shared", "def go(t):\n    if t not in shared:\n"
     "        shared[t] = emb(wf.tensor(t)) if isinstance(t, int) else "
     "lin(wf.cat([go(t[0]), go(t[1])]))\n    return shared[t]\nreturn go(x)", "shared = {}\n"),
    ("generator over leaves", "def leaves(t):\n    if isinstance(t, int):\n        yield emb(wf.tensor(t))\n"
     "    else:\n        for k in t:\n"
     "            yield from leaves(k)\nreturn sum(leaves(x))", ""),
    ("map over children", "def go(t):\n"
     "    return emb(wf.tensor(t)) if isinstance(t, int) else wf.stack(wf.map(go, t)).sum(0).tanh()\nreturn go(x)", ""),
    ("shift and reduce", "s = []\ndef go(t):\n    if isinstance(t, int):\n        s.append(emb(wf.tensor(t)))\n"
     "    else:\n        go(t[0])\n        go(t[1])\n"
     "        b, a = s.pop(), s.pop()\n        s.append(lin(wf.cat([a, b])).tanh())\ngo(x)\nreturn s[0]", ""),
]:  # fmt: skip
    case("tree, " + name, TREES + its, body, "emb, cell, lin")

SEQUENCES = """
emb, cell, out, A = mod(nn.Embedding(6, 3)), mod(nn.LSTMCell(3, 3)), mod(nn.Linear(3, 6)), weight(6, 6)
q, gru = weight(3), mod(nn.GRUCell(3, 3))
xs = [[0, 1, 2], [3], [4, 5, 0, 1], [2, 2]]
"""
for name, body in {
    "last state": "s = wf.zeros(3).double(), wf.zeros(3).double()\nfor k in x:\n    s = cell(emb(wf.tensor(k)), s)\n"
        "return s[0]",
    "all states": "h = wf.zeros(3).double()\nhs = []\nfor k in x:\n    h = gru(emb(wf.tensor(k)), h)\n"
        "    hs.append(h)\nreturn hs, wf.stack(hs)",
    "language model": "h = wf.zeros(3).double()\nloss = 0.0\nfor a, b in zip(x, x[1:]):\n"
        "    h = gru(emb(wf.tensor(a)), h)\n"
                      "    loss = loss + F.cross_entropy(out(h), wf.tensor(b))\nreturn loss",
    "bag of words": "return emb(wf.tensor(x)).mean(0) @ q",
    "attention": "m = emb(wf.tensor(x))\na = (m @ q).softmax(0)\nreturn a @ m, a",
    "self attention": "m = emb(wf.tensor(x))\nreturn (m @ m.T / 3).softmax(-1) @ m",
    "causal attention": "m = emb(wf.tensor(x))\ns = m @ m.T\nmask = wf.ones(len(x), len(x)).triu(1) > 0\n"
        "return s.masked_fill(mask, -1e9).softmax(-1) @ m",
    "viterbi": "e = out(emb(wf.tensor(x)))\ns, back = e[0], []\nfor r in e[1:]:\n"
        "    best, k = (s[:, None] + A).max(0)\n    back.append(k)\n"
               "    s = best + r\npath = [s.argmax().item()]\nfor k in reversed(back):\n"
               "    path.append(k[path[-1]].item())\nreturn path, s.max()",
    "forward algorithm": "e = out(emb(wf.tensor(x)))\ns = e[0]\nfor r in e[1:]:\n"
        "    s = wf.logsumexp(s[:, None] + A, 0) + r\nreturn s.logsumexp(0)",
    "crf loss": "e = out(emb(wf.tensor(x)))\ns = e[0]\nfor r in e[1:]:\n    s = wf.logsumexp(s[:, None] + A, 0) + r\n"
                "g = sum(e[t, k] for t, k in enumerate(x)) + sum(A[a, b] for a, b in zip(x, x[1:]))\n"
                "return s.logsumexp(0) - g",
    "greedy": "h, k, text = wf.zeros(3).double(), x[0], []\nfor _ in range(4):\n    h = gru(emb(wf.tensor(k)), h)\n"
        "    k = out(h).argmax().item()\n"
              "    text.append(k)\n    if k == 5:\n        break\nreturn text, h",
    "beam search": "beams = [(0.0, [x[0]], wf.zeros(3).double())]\nfor _ in range(3):\n    new = []\n"
        "    for s, t, h in beams:\n"
                   "        h = gru(emb(wf.tensor(t[-1])), h)\n        v, k = out(h).log_softmax(0).topk(2)\n"
                   "        new += [(s + a, t + [b], h) for a, b in zip(v.tolist(), k.tolist())]\n"
                   "    beams = sorted(new, key=lambda b: -b[0])[:2]\nreturn [(s, t) for s, t, _ in beams]",
    "scheduled by value": "h = wf.zeros(3).double()\nfor k in x:\n    e = emb(wf.tensor(k))\n"
        "    h = gru(e, h) if (e @ q) > 0 else h * 0.5\nreturn h",
    "stack of states": "st = [wf.zeros(3).double()]\nfor k in x:\n    if k % 3 == 0 and len(st) > 1:\n"
        "        st.pop()\n    else:\n"
                       "        st.append(gru(emb(wf.tensor(k)), st[-1]))\nreturn st[-1], len(st)",
    "bidirectional": "f, b = wf.zeros(3).double(), wf.zeros(3).double()\nfor k, j in zip(x, reversed(x)):\n"
        "    f, b = gru(emb(wf.tensor(k)), f), gru(emb(wf.tensor(j)), b)\n"
                     "return wf.cat([f, b])",
    "pairs": "m = [emb(wf.tensor(k)) for k in x]\nreturn [(a * b).sum() for k, a in enumerate(m) for b in m[:k]]",
    "edit distance": "d = [[0] * (len(x) + 1) for _ in range(2)]\nfor k in range(len(x)):\n"
        "    d[1][k + 1] = d[0][k] + emb(wf.tensor(x[k]))[0]\nreturn d[1][1:]",
    "max pool": "return wf.stack([emb(wf.tensor(k)) for k in x]).max(0).values",
    "conv": "return F.conv1d(emb(wf.tensor(x)).T[None], wf.ones(2, 3, 1).double()).sum(-1)",
    "graph": "hs = [emb(wf.tensor(k)) for k in x]\nfor _ in range(2):\n    hs = [gru(sum(hs), h) for h in hs]\n"
        "return hs",
    "pointer": "m = emb(wf.tensor(x))\nk = (m @ q).argmax()\nreturn m[k], x[k]",
    "copy by mask": "m = emb(wf.tensor(x))\ng = (m @ q) > 0\nreturn m[g].sum(0), g.sum().item()",
    "pad and mask": "t = wf.zeros(4, dtype=wf.long)\nt[: len(x)] = wf.tensor(x)\nm = wf.arange(4) < len(x)\n"
        "return (emb(t) * m[:, None]).sum(0)",
    "sampled": "return [emb(wf.tensor(k)) @ q for k in x if k % 2]",
    "halting": "h, p, n = wf.zeros(3).double(), 0.0, 0\nwhile p < 0.9 and n < 5:\n"
        "    h = gru(emb(wf.tensor(x[0])), h)\n"
               "    p = p + h.sigmoid().mean().item() * 0.5\n    n += 1\nreturn h, n",
    "rows written": "m = wf.zeros(len(x), 3).double()\nfor t, k in enumerate(x):\n    m[t] = emb(wf.tensor(k))\n"
        "return m.cumsum(0)",
    "nested map": "return wf.stack(wf.map(lambda k: emb(wf.tensor(k)) * q, x)).sum(0)",
    "nested map with looks": "g = wf.map(lambda k: k if (emb(wf.tensor(k)) @ q) > 0 else None, x)\n"
        "return [t for t in g if t is not None]",
    "nested map by hand": "return wf.map(lambda k: emb(wf.tensor(k)), x, batch=False)",
    "nested block": "with wf.batching():\n    hs = [emb(wf.tensor(k)) * q for k in x]\nreturn hs",
    "nested block with a look": "with wf.batching():\n    hs = [emb(wf.tensor(k)) @ q for k in x]\n"
        "    best = max(range(len(x)), key=lambda k: hs[k].item())\nreturn hs, best",
}.items():  # fmt: skip
    case("sequence, " + name, SEQUENCES, body, "emb, cell, out, A, q, gru")
