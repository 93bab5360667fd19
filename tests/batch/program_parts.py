"""What random programs for `wf.map` are made of: forms that walk an example, and statements on vectors.

In a statement `{a}` and `{b}` are vectors as wide as all others, and `{n}` is a new name for one. A form has places
(`#cell`) where statements go; each place begins with some vectors that are named there and ends in `h`.
"""

import wayfare as wf
from tests.compiler.program_parts import Box, Cube, SumAndProduct, blended, softer
from wayfare.nn import functional as F


@wf.compile
def compiled_mix(x, y):
    return (x * y).tanh() + y * 0.3


@wf.compile
def compiled_branch(x):
    if x.sum() > 0:
        return x.sin()
    return x * 0.5


def halves(x):
    """A helper with a loop that ends where a value says so."""
    steps = 0
    while x.abs().max() > 0.4 and steps < 6:
        x = x * 0.6
        steps += 1
    return x + steps * 0.1


NAMES = {
    "wf": wf, "F": F, "nn": wf.nn, "Cube": Cube, "SumAndProduct": SumAndProduct, "blended": blended, "Box": Box,
    "softer": softer, "compiled_mix": compiled_mix, "compiled_branch": compiled_branch, "halves": halves,
    "checkpoint": wf.checkpoint,
}  # fmt: skip

# Each form: its source, and for each of its places the vectors that are there at the beginning.
FORMS = {
    "straight": ("""
def program(e):
    #body
    return #result
""", {"body": ["e.x"]}),
    "sequence": ("""
def program(e):
    h = #start
    for x, word in zip(e.xs, e.words):
        #step
    #body
    return #result
""", {"step": ["h", "x", "table[word]"], "body": ["h", "e.x"]}),
    "states": ("""
def program(e):
    h, c = e.x, u
    outs = []
    for x in e.xs:
        h, c = cell(x, (h, c)) if x.dim() else (h, c)
        #step
        outs.append(h)
    h = wf.stack(outs).#pool if outs else h
    #body
    return #result
""", {"step": ["h", "c", "x"], "body": ["h", "c"]}),
    "tree": ("""
def program(e):
    def visit(node):
        if not node.children:
            h = #leaf_start
            #leaf
            return h
        parts = [visit(child) for child in node.children]
        x = node.x
        h = #joined
        #cell
        return h
    h = visit(e.tree)
    #body
    return #result
""", {"leaf": ["h", "node.x"], "cell": ["h", "x", "parts[0]", "parts[-1]"], "body": ["h", "e.x"]}),
    "tree_cell": ("""
def program(e):
    def visit(node):
        h, c = tree_cell(node.x, [visit(child) for child in node.children])
        #cell
        return h, c
    h, c = visit(e.tree)
    #body
    return #result
""", {"cell": ["h", "c", "node.x"], "body": ["h", "c"]}),
    "dag": ("""
def program(e):
    seen = #memory
    def visit(node):
        if id(node) not in seen:
            parts = [visit(child) for child in node.children] + [node.x]
            h = #joined
            #cell
            seen[id(node)] = h
        return seen[id(node)]
    h = visit(e.root)
    #body
    return #result
""", {"cell": ["h", "node.x", "table[node.word]"], "body": ["h", "e.x"]}),
    "graph": ("""
def program(e):
    states = list(e.states)
    for _ in range(1 + e.k % 2):
        new = []
        for own, near in zip(states, e.near):
            parts = [states[j] for j in near] or [own]
            h = #joined
            #cell
            new.append(h)
        states = new
    h = wf.stack(states).#pool
    #body
    return #result
""", {"cell": ["h", "own"], "body": ["h", "e.x"]}),
    "halting": ("""
def program(e):
    h, p, steps, total = e.x, 0.0, 0, wf.zeros_like(e.x)
    while p < 1 and steps < 5:
        #step
        p = p + (h @ b).sigmoid() * 0.7
        total = total + h * p
        steps += 1
    h = total
    #body
    return #result
""", {"step": ["h", "e.x"], "body": ["h", "e.x"]}),
    "parser": ("""
def program(e):
    stack, buffer = [e.x], list(e.xs)
    taken = []
    while buffer or len(stack) > 1:
        top = stack[-1]
        action = int((w[:2] @ top).argmax()) if len(stack) > 1 and buffer else 0 if buffer else 1
        taken.append(action)
        if action == 0:
            stack.append(buffer.pop())
            continue
        parts = [stack.pop(), stack.pop()]
        h = #joined
        #cell
        stack.append(h)
    h = stack[0]
    #body
    return #result
""", {"cell": ["h", "top"], "body": ["h", "e.x"]}),
    "beam": ("""
def program(e):
    beams = [(e.x, e.x.sum() * 0)]
    for _ in range(e.k):
        more = []
        for h, score in beams:
            scores = F.log_softmax(h @ w, -1)
            best = scores.topk(2)
            for s, i in zip(best.values, best.indices):
                i = int(i)
                x = table[i]
                #step
                more.append((h, score + s))
        beams = sorted(more, key=lambda pair: -float(pair[1]))[:2]
    h = beams[0][0] * beams[0][1]
    #body
    return #result
""", {"step": ["h", "x"], "body": ["h", "e.x"]}),
    "nested": ("""
def program(e):
    def inner(x, word):
        h = x
        #step
        return h
    parts = wf.map(inner, e.xs, e.words) + [e.x]
    h = #joined
    #body
    return #result
""", {"step": ["h", "x", "table[word]"], "body": ["h", "e.x"]}),
    "block": ("""
def program(e):
    parts = [e.x]
    with wf.batching():
        for x in e.xs:
            h = x
            #step
            parts.append(h)
    h = #joined
    #body
    return #result
""", {"step": ["h", "x"], "body": ["h", "e.x"]}),
}
CHOICES = {
    "start": ("e.x", "b", "u", "wf.zeros(d, dtype=w.dtype)", "e.shared", "e.x.new_zeros(d)"),
    "leaf_start": ("node.x", "table[node.word]", "F.embedding(wf.tensor(node.word), table)", "net(node.x)", "b"),
    "joined": (
        "sum(parts)", "wf.stack(parts).sum(0)", "wf.stack(parts).amax(0)", "wf.cat(parts).reshape(-1, d).mean(0)",
        "parts[0]", "parts[-1] - parts[0]", "wf.stack(parts, -1).logsumexp(-1)",
        "F.softmax(wf.stack(parts) @ b, 0) @ wf.stack(parts)",
    ),
    "pool": ("sum(0)", "mean(0)", "amax(0)", "max(0).values", "unbind(0)[-1]", "cumsum(0)[-1]"),
    "memory": ("memo", "{}"),
    "result": (
        "h", "h", "h", "(h, e.k)", "{'h': h, 'parts': [h.sum(), None]}", "[h, h]", "(h, float(h.sum()))",
        "(h, e.x)", "(h.detach(), h)", "(h > 0, h)", "(h, 'text', (h * 2,))", "h.sum()", "h if h.sum() > 0 else None",
        "(h.argmax(), h)", "h[0]", "(h, h.view(-1))", "h.unbind(0)", "[]", "e.x", "(h[:0], h)",
    ),
}  # fmt: skip

VECTORS = (
    "{n} = {a} + {b}", "{n} = {a} - {b} * 0.5", "{n} = {a} * {b}", "{n} = ({a} @ w).tanh()", "{n} = w @ {a}",
    "{n} = F.linear({a}, w, b)", "{n} = net({a})", "{n} = gru({a}, {b})", "{n} = cell({a}, ({b}, {a}))[0]",
    "{n} = {a}.sigmoid()", "{n} = {a}.relu()", "{n} = {a} / ({b}.square() + 1)", "{n} = {a}.softmax(-1)",
    "{n} = {a} * {b}.sum()", "{n} = {a} + ({a} @ {b})", "{n} = wf.where({a} > {b}, {a}, {b} * 2)",
    "{n} = wf.where(e.flags, {a}, {b})", "{n} = wf.maximum({a}, {b})", "{n} = blended({a}, {b})",
    "{n} = F.layer_norm({a}, ({a}.shape[-1],))", "{n} = {a}.flip(0)", "{n} = {a}.cumsum(0)", "{n} = {a}.sort().values",
    "{n} = wf.cat([{a}, {b}]).reshape(2, -1).sum(0)", "{n} = wf.cat([{a}[:1], {b}[1:]])",
    "{n} = wf.stack([{a}, {b}]).mean(0)", "{n} = wf.cat([{a}, {b}]).chunk(2)[1]", "{n} = (uu @ {a}) * 0.3 + u",
    "{n} = {a} + e.shared", "{n} = {a} * c0", "{n} = {a} + c1[0] * c1[1]", "{n} = {a} @ w @ uu * 0.2",
    "{n} = table[int({a}.argmax()) % 20]", "{n} = table[{a}.argmax()]", "{n} = {a} + table[e.words].sum(0)",
    "{n} = {a} * 0 + F.embedding(wf.tensor([e.k, 0]), table).prod(0)", "{n} = {a}[wf.tensor([-1, *range(d - 1)])]",
    "{n} = {a}.unsqueeze(0).expand(4, -1).sum(0)", "{n} = {a}.outer({b}).sum(0)", "{n} = ({a}[:, None] * {b}).mT[0]",
    "{n} = e.m.mean(0) * {a}", "{n} = F.softmax(e.m @ {a}, 0) @ e.m", "{n} = (e.m * {a})[0]",
    "{n} = {a}.view(1, -1).transpose(0, 1).reshape(-1)", "{n} = {a}.masked_fill({b} > 0.3, 0.1)",
    "{n} = {a}.clamp(-0.5, 0.8)", "{n} = {a} * e.scale + e.k", "{n} = {a} + e.whole", "{n} = {a} * e.flags",
    "{n} = {a}.float().to({b}.dtype) * {b}", "{n} = ({a} * e.other).to({a}.dtype)", "{n} = {a} * (e.whole > 0).sum()",
    "{n} = {a}.detach() * {b}", "{n} = {a}.clone()", "{n} = compiled_mix({a}, {b})", "{n} = compiled_branch({a})",
    "{n} = halves({a})", "{n} = softer({a}, {b})", "{n} = Cube.apply({a})", "{n} = SumAndProduct.apply({a}, {b})[1]",
    "{n} = checkpoint(lambda t: (t @ w).sin(), {a}, use_reentrant=False)", "{n} = {a}.norm() * {b}",
    "{n} = wf.vmap(lambda t: t.tanh() * 2)({a})", "{n} = wf.addmv({a}, w, {b}, alpha=0.3)", "{n} = {a} * {b}.max()",
    "{n} = wf.einsum('i,ij,j->i', {a}, w, {b})", "{n} = {a}.roll(1) - {a}", "{n} = {a}.repeat(2)[: {a}.shape[0]]",
    "{n} = {a}.expand(2, -1)[1] + {b}", "{n} = wf.bmm({a}.view(1, 1, -1), w[None]).view(-1)",
    "{n} = {a}.index_add(0, wf.tensor([0, 0]), {b}[:2])", "{n} = {a}.gather(0, {b}.argsort())",
    "{n} = wf.zeros_like({a}) + {b}", "{n} = wf.ones(d, dtype=w.dtype) * {a}", "{n} = wf.arange(d) * {a}",
    "{n} = wf.eye(d, dtype=w.dtype) @ {a}", "{n} = F.one_hot(wf.tensor(e.k % d), d) * {a}", "{n} = {a} * F.silu({b})",
    "{n} = {a} * F.cosine_similarity({a}, {b}, 0)", "{n} = {a} * F.cross_entropy({b}, wf.tensor(e.k % d))",
    "{n} = {a}.tril() if {a}.dim() > 1 else {a}", "{n} = wf.tensor([float(v) for v in {a}], dtype=w.dtype) * {b}",
    "{n} = {a}.to(wf.float32).double().to({b}.dtype) + {b}", "{n} = {a}.lerp({b}, 0.3)", "{n} = {a}[:d] * {b}[0]",
    "{n} = {a} * e.other[0]", "{n} = {a} * e.whole[0] + e.other.sum().to({a}.dtype)",
    "{n} = ({a}.half() * 2).to({b}.dtype)", "{n} = {a} * (e.whole.sum() * 0.1)",
    "{n} = {a} + (e.flags & ({b} > 0)).any()", "{n} = {a} * e.whole.float().mean()", "{n} = {a} * ({b}[0] > {b}[1])",
    "{n} = {a} + e.whole.cumsum(0).clamp(-1, 1)", "{n} = {a} / ({b}.abs().sum() + 1)",
    "{n} = F.conv1d({a}.view(1, 1, -1), w[:1, None, :3], padding=1).view(-1)", "{n} = norm({a}.repeat(2, 1))[0]",
    "{n} = attend({a}[None], e.m, e.m)[0][0]", "{n} = drop({a}) if drop.training else {a}",
    "{n} = F.scaled_dot_product_attention({a}[None], e.m, e.m)[0]", "{n} = F.pad({a}, (1, 2))[1:-2]",
    "{n} = wf.stack(list({a})).sqrt() if ({a} > 0).all() else {a}.abs()", "{n} = {a}.sum(0, keepdim=True) * {b}",
    "{n} = wf.linalg.solve(uu + 20 * wf.eye(d, dtype=w.dtype), {a})", "{n} = {a}.nan_to_num() + {b}.isnan()",
    "{n} = F.embedding(e.whole.abs(), table, padding_idx=1).sum(0) * {a}",
    "{n} = F.bilinear({a}, {b}, w[None], b[:1]) * {a}",
    "{n} = {a}.to(wf.float64 if {a}.dtype == wf.float32 else wf.float32).to({a}.dtype)",
    "{n} = {a}.new_full((d,), 0.5) * {b}", "{n} = wf.full_like({a}, 0.5) * {b}", "{n} = {a}.diag() @ {b}",
    "{n} = {a}.unfold(0, 2, 1).sum() * {b}", "{n} = {a}.as_strided((d,), (1,)) * {b}",
    "{n} = wf.outer({a}, {b}).diagonal()", "{n} = wf.cdist({a}[None], e.m).sum() * {b}",
    "{n} = {a}.scatter_add(0, wf.tensor([0, 1]), {b}[:2])", "{n} = wf.tensor({a}.tolist(), dtype=w.dtype) - {b}",
    "{n} = {a} * {b}.count_nonzero()", "{n} = {a}.topk(2).values.sum() + {b}", "{n} = wf.logaddexp({a}, {b})",
    "{n} = {a}.square().mean().sqrt() * {b}", "{n} = {a} * {b}.std()", "{n} = {a}.log_softmax(0)",
)  # fmt: skip

STATEMENTS = (
    "if {a}.sum() > 0:\n    {n} = {b} * 2\nelse:\n    {n} = {b}.sin()",
    "{n} = {a}\nfor _ in range(e.k):\n    {n} = ({n} @ w).tanh()",
    "{n} = {a}\nfor i in range(int({b}.abs().sum()) % 3):\n    {n} = {n} * {b} + i",
    "{n} = {b} * {a}.mean().item()",
    "{n} = {a}\nif bool(({b} > 0.2).any()) and e.k > 1:\n    {n} = {n}.exp().clamp(max=3)",
    "{n} = {a}.clone()\n{n} += {b}",
    "{n} = {a} * 1\n{n}[0] = {b}.sum()",
    "{n} = {a} * 1\n{n}[1:] *= {b}[:1]",
    "{n} = wf.zeros(d, dtype=w.dtype)\nfor i in range(d):\n    {n}[i] = {a}[i] * (i + 1)",
    "{n} = {a}.clone()\nfor i in range(1, min(d, 4)):\n    {n}[i] = {n}[i - 1].sin() + {b}[i]",
    "{n} = {a}.clone()\nv = {n}.view(-1)[1:]\nv.mul_(0.5)\nv.add_({b}[:-1])",
    "{n} = wf.zeros(3, d, dtype=w.dtype)\n{n}[e.k % 3] = {a}\n{n}[0] += {b}\n{n} = {n}.sum(0)",
    "{n} = {a}.clone()\n{n}[{n} > 0.5] = 0.25",
    "with wf.no_grad():\n    {n} = {a} * {b}",
    "with wf.no_grad():\n    {n} = {a} * 1\n    {n}.mul_({b})\n{n} = {n} + {b}",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: g * 2)",
    "kept.setdefault(e.index, []).append({a} * 2)\n{n} = {a}",
    "{n} = {a} * len(kept.get(e.index, ()))",
    "try:\n    {n} = {a} @ wf.ones(97)\nexcept RuntimeError:\n    {n} = {b} * 3",
    "{n} = [{b}.sin(), {b}.cos()][int({a}.sum() > 0)]",
    "{n} = {b} + max(float({a}.max()), 0.0)",
    "g, = wf.autograd.grad(({a}.detach().requires_grad_() ** 3 * b).sum(), [b]) if b.requires_grad else (b,)\n"
    "{n} = g * {b}",
    "{n} = {a}.detach().clone().requires_grad_()\n({n} * {b}.detach()).sin().sum().backward()\n{n} = {n}.grad + {b}",
    "if {a}.requires_grad:\n    ({a} * {a}).sum().backward(retain_graph=True)\n{n} = {a}",
    "{n} = wf.map(lambda t: t * {b}, [{a}, {b}])[0]",
    "{n} = sum(wf.map(lambda i: {a} * i + {b}.sum(), range(e.k))) + {b}",
    "{n} = {a} * (1 if {a}.requires_grad else 2)",
    "{n} = {a} * {b}.shape[0] + len({a}) + {a}.dim() + {a}.numel()",
    "{n} = {a} + float(str({b}.sum() > 0) == 'tensor(True)')",
    "first, second = {a}.chunk(2)[0], {b}[1:]\n{n} = {a} + first.sum() * second.sum()",
    "{n} = sum(v * (i + 1) for i, v in enumerate({a})) * {b}",
    "low, where = {a}.min(0)\n{n} = {b} + low * where",
    "{n} = {a}\nfor v in {b}.tolist():\n    {n} = {n} + v",
    "{n} = {a}.clone()\nfor row in e.m:\n    {n} += row * {b}",
    "{n} = wf.zeros(e.length + 1, d, dtype=w.dtype)\nfor i in range(e.length):\n"
    "    {n}[i + 1] = {n}[i] + e.xs[i] * {a}\n{n} = {n}[-1]",
    "{n} = {a} * 1\n{n}[wf.tensor([0, 1])] += {b}[:2]",
    "{n} = {a} * 1\n{n}[-1:] = {b}[:1]\n{n} = {n} * {n}",
    "{n} = {a} * 1\nparts_of = {n}.split(1)\nparts_of[0].add_(1)\n{n} = {n} + parts_of[-1]",
    "{n} = {a}\nwith wf.enable_grad():\n    {n} = {n} * {b}",
    "values, order = {a}.sort()\n{n} = values[order]",
    "{n} = {a}\nfor i, v in enumerate({b}):\n    if v > 0:\n        {n} = {n} + v * (i + 1)",
    "{n} = max(({a}, {b}), key=lambda t: float(t.sum()))",
    "{n} = sum(sorted({a}.unbind(), key=float)[:2]) * {b}",
    "def deeper(t, n):\n    return t if n == 0 else deeper((t @ w).tanh(), n - 1)\n{n} = deeper({a}, e.k)",
    "{n} = {a} + (lambda t: t.sin() if t.max() > 0.5 else t.cos())({b})",
    "{n} = wf.stack([x_ * y_ for x_, y_ in zip({a}, {b})])",
    "{n} = {a}\nwhile 1.5 < {n}.norm() < 1e6:\n    {n} = {n} * 0.7",
    "{n} = {a} * 1\n{n}.requires_grad_({n}.requires_grad)\n{n} = {n} + {b}",
    "{n} = ({a} * {b}).detach_() + {a}",
    "hs = {{}}\nhs['x'] = {a}\nhs['y'] = hs['x'] * {b}\nhs['x'] = hs['x'] + hs.pop('y')\n{n} = hs['x']",
    "{n} = {a}[:0].sum() + {b}",
    "{n} = wf.cat([{a}[:0], {b}])",
    "box = Box()\nbox.kept = {a} * {b}\n{n} = box.kept + {a}",
    "{n} = {a} * 1\n{n}.copy_({b})\n{n} = {n} + {a}",
    "{n} = {a} * 1\nwith wf.no_grad():\n    {n}[0] = 0.5\n{n} = {n} * {b}",
    "{n} = {a} * 1\nalias = {n}\nbefore = {n} * {b}\nalias += 1\n{n} = {n} + before",
    "{n} = {a} + 0\nsaved = {n}.detach()\n{n} = {n} * saved",
    "m = wf.stack([{a}, {b}])\nm[0], m[1] = m[1].clone(), m[0] * 2\n{n} = m.sum(0)",
)
RANDOM = (
    "{n} = F.dropout({a}, 0.4, True)", "{n} = {a} * wf.rand_like({a})", "{n} = {a} + wf.randn(d, dtype=w.dtype)",
    "{n} = {a} * wf.bernoulli({b}.detach().sigmoid())", "{n} = {a}[wf.randperm(d)]",
    "{n} = {a} * wf.randint(0, 3, (d,))", "{n} = {a} if wf.rand(()) > 0.5 else {b}",
    "{n} = {a} + {b}.detach().clone().normal_()", "{n} = table[wf.multinomial({a}.detach().softmax(0), 1).item() % 20]",
)  # fmt: skip
