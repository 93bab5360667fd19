"""Gradients: outputs nobody uses, `.grad` that appears, vanishes or is shared, zero_grad, accumulation, clipping."""

from tests.compiler.hostile.harness import family

case = family("grads")

# -- outputs nobody uses ----------------------------------------------------------------------------------------------

TWO = """
a, b, c = num(3, grad=True), num(3, seed=1, grad=True), num(3, seed=2, grad=True)
@way
def f(x):
    return (a * x).sum(), (b * x.sin()).sum(), c * 2
"""
for after in [
    "r[0].backward()", "r[1].backward()", "r[2].sum().backward()", "(r[0] + r[1]).backward()",
    "r[k % 2].backward()", "r[k % 3].sum().backward() if k != 5 else None", "(r[0] * 0).backward()",
    "wf.autograd.backward([r[0], r[2].sum()])",
]:  # fmt: skip
    case(f"unused outputs: {after}", TWO, args="num(3, seed=k),", after=after)
    case(f"unused outputs, argument too: {after}", TWO, args="num(3, seed=k, grad=True),", after=after)

for after in [
    "got = wf.autograd.grad(r[0], [a, b, c], allow_unused=True)",
    "got = wf.autograd.grad(r[1], [a, b, c, args[0]], allow_unused=True)", "got = wf.autograd.grad(r[0], [a, b])",
    "got = wf.autograd.grad(r[0], [a, b], allow_unused=True, materialize_grads=True)",
    "got = wf.autograd.grad(r[0] + r[1], [a, b, c], allow_unused=True, create_graph=True)",
    "got = wf.autograd.grad(r[k % 2], [a, b], allow_unused=True, retain_graph=True); r[1].backward()",
    "got = wf.autograd.grad(r[2], [c, a], wf.ones(3), allow_unused=True)",
]:
    case(f"autograd.grad: {after[6:]}", TWO, args="num(3, seed=k, grad=True),", after=after, fails=True)

for name, f in [
    ("several outputs of one layer", "h = lin(x)\n    return h[0], h[1].detach(), other(x).sum()"),
    ("a branch of the graph", "h, g = lin(x), other(x)\n    return h.sum(), g.sum(), (h * g).sum()"),
    ("a tuple inside a dict", 'return {"a": (lin(x).sum(), 3), "b": [other(x).sum()], "c": None}'),
    ("unbound rows", "return lin(x).unbind() + (other(x),)"), ("split", "return (*lin(x).split(1), other(x))"),
    ("max and its place", "v, i = lin(x).max(1)\n    return v, i, other(x)"),
    ("same tensor twice", "h = lin(x)\n    return h, h, other(x)"),
    ("argument returned", "return x, lin(x), other(x)"),
    ("weight returned", "return lin.weight, lin(x), other(x)"),
    ("view of a weight", "return lin.weight[0], lin(x), other.weight.T"),
]:
    for opt in ("AdamW([*lin.parameters(), *other.parameters()], lr=0.1, weight_decay=0.5)",
                "SGD([*lin.parameters(), *other.parameters()], lr=0.1, momentum=0.9, weight_decay=0.1)"):  # fmt: skip
        case(f"optimiser outside, {name}, {opt[:4]}", f"""
lin, other = nn.Linear(3, 2), nn.Linear(3, 2)
opt = wf.optim.{opt}
def leaves(r):
    if isinstance(r, wf.Tensor):
        return [r] if r.requires_grad else []
    r = r.values() if isinstance(r, dict) else r
    return [t for part in r for t in leaves(part)] if not isinstance(r, (int, type(None))) else []
@way
def f(x):
    {f}
""", args="num(2, 3, seed=k),", after="""
opt.zero_grad()
used = leaves(r)
used[k % len(used)].sum().backward()
opt.step()
""")  # fmt: skip

INSIDE = """
a, b = num(3, grad=True), num(3, seed=1, grad=True)
opt = wf.optim.{}([a, b], lr=0.1, weight_decay=0.5)
@way
def f(x, both):
    opt.zero_grad()
    y, z = (a * x).sum(), (b * x).sum()
    (y + z if both else y).backward()
    opt.step()
    return y, z
"""
for kind in ("SGD", "AdamW", "Adam", "RMSprop", "Adagrad", "NAdam"):
    case(f"parameter that takes no part, {kind}", INSIDE.format(kind), args="num(3, seed=k), k % 4 == 0", after="")
    case(
        f"parameter whose first gradient comes late, {kind}", INSIDE.format(kind), args="num(3, seed=k), k > 6",
        after="")  # fmt: skip

# -- .grad that appears, vanishes or becomes shared ------------------------------------------------------------------

STEP = """
w, v = num(3, grad=True), num(3, seed=1, grad=True)
w.grad = num(3, seed=9)
opt = wf.optim.{}
@way
def f(x):
    {}
    opt.step()
    return loss
"""
GRADS = [
    "v.grad = num(3, seed=4)", "v.grad = None", "w.grad = None", "w.grad = num(3, seed=5)", "v.grad = w.grad",
    "v.grad = w.grad; w.grad = None", "w.grad = wf.zeros(3); v.grad = wf.ones(3)", "opt.zero_grad()",
    "opt.zero_grad(set_to_none=False)", "v.grad = v.data", "w.grad = v", "w.grad = num(3, 3)[1]",
    "g = num(6); w.grad = g[:3]; v.grad = g[2:5]", ("v.grad = num(3, seed=k)", "v.grad = None"),
    "each: v.grad = num(3, seed=k) if k % 3 else None", "each: w.grad = None if k % 4 == 0 else w.grad",
    "w.grad = num(3).expand(3); w.grad = wf.ones(1).expand(3)", "w.requires_grad_(False)",
    "(v * 2).sum().backward()",
]  # fmt: skip
for opt in ("SGD([w, v], lr=0.1)", "SGD([w, v], lr=0.1, momentum=0.9)", "AdamW([w, v], lr=0.1)"):
    case(f"only a step, {opt}", STEP.format(opt, "loss = (x * w).sum().detach()"), *GRADS, args="num(3, seed=k),")
case("accumulate then step", STEP.format("SGD([w, v], lr=0.1)", "loss = (x * w).sum()\n    loss.backward()"), *GRADS,
     args="num(3, seed=k),", after="", fails=True)  # fmt: skip
case(
    "accumulate, both", STEP.format("Adam([w, v], lr=0.1)", "loss = (x * w * v).sum()\n    loss.backward()"),
    *GRADS, args="num(3, seed=k),", after="", fails=True)  # fmt: skip
for none in (True, False):
    zero = f"opt.zero_grad(set_to_none={none})\n    loss = (x * w).sum()\n    loss.backward()"
    case(f"zero_grad {none} first", STEP.format("AdamW([w, v], lr=0.1)", zero), *GRADS[:13],
         args="num(3, seed=k),", after="")  # fmt: skip

case("gradients read", """
w, v = num(3, grad=True), num(3, seed=1, grad=True)
@way
def f(x):
    if v.grad is None:
        return x * w
    return x * w * v.grad
""",
    "v.grad = num(3)", "v.grad = wf.zeros(3)", ("v.grad = num(3)", "v.grad = None"), "v.grad = w",
    "v.grad = v.data", args="num(3, seed=k),")  # fmt: skip

case("gradients written inside", """
w, v = num(3, grad=True), num(3, seed=1, grad=True)
@way
def f(x):
    w.grad = x * 2
    v.grad = w.grad
    return w.grad
""", "w.grad = None", "v.grad = num(3)", args="num(3, seed=k),")

case("gradients scaled inside", """
w, v = num(3, grad=True), num(3, seed=1, grad=True)
w.grad, v.grad = num(3, seed=2), num(3, seed=3)
@way
def f(x):
    for p in (w, v):
        if p.grad is not None:
            p.grad.mul_(0.5)
    return x + 1
""",
    "v.grad = None", "v.grad = w.grad", "w.grad = v.grad[:]", "w.grad = None; v.grad = None",
    "v.requires_grad_(False)", args="num(3, seed=k),")  # fmt: skip

case("gradient kept outside", """
w, kept = num(3, grad=True), []
@way
def f(x):
    w.grad = None
    (w * x).square().sum().backward()
    return w.grad
""", "kept.append(w.grad)", "w.grad.zero_()", "each: kept.append(w.grad)", args="num(3, seed=k),")

case("accumulation over four calls", """
w = num(3, grad=True)
opt = wf.optim.SGD([w], lr=0.1)
@way
def f(x):
    (w * x).sum().backward()
    if k % 4 == 0:
        opt.step()
        opt.zero_grad()
""", "w.grad = None", "opt.zero_grad(set_to_none=False)", "w.grad = wf.ones(3)", args="num(3, seed=k),")

case("accumulation chosen by an argument", """
w = num(3, grad=True)
opt = wf.optim.Adam([w], lr=0.1)
@way
def f(x, last):
    (w * x).sum().backward()
    if last:
        opt.step()
        opt.zero_grad()
    return None if w.grad is None else w.grad.clone()
""", "w.grad = None", "opt.zero_grad(set_to_none=False)", args="num(3, seed=k), k % 3 == 0")

for clip in ("clip_grad_norm_(lin.parameters(), limit)", "clip_grad_value_(lin.parameters(), limit)"):
    case(f"clip: {clip}", f"""
lin, limit = nn.Linear(3, 2), 0.5
opt = wf.optim.SGD(lin.parameters(), lr=0.1)
@way
def f(x):
    loss = lin(x).square().sum()
    loss.backward()
    norm = nn.utils.{clip}
    opt.step()
    opt.zero_grad()
    return loss, norm
""", "limit = 100.0", "limit = 0.01", "lin.bias.grad = wf.ones(2)", "lin.bias.requires_grad_(False)",
        "each: limit = 1.0 / k", "lin.weight.grad = num(2, 3)", args="num(2, 3, seed=k),", after="")  # fmt: skip

# -- asked for from outside ------------------------------------------------------------------------------------------

BACK = "p = num(3, grad=True)\n@way\ndef f(x):\n    return (x * p).tanh(), x.exp() * p\n"
for name, after in [
    ("twice with the graph kept", "r[0].sum().backward(retain_graph=True); r[0].sum().backward()"),
    ("twice without", "r[0].sum().backward(); r[0].sum().backward()"),
    ("second after the first", "r[0].sum().backward(); r[1].sum().backward()"),
    ("with a gradient given", "r[0].backward(num(3, seed=k + 1))"),
    ("with an expanded gradient", "r[0].backward(wf.ones(1).expand(3))"),
    ("with a gradient that is a parameter", "r[0].backward(p.detach())"),
    ("double backward", "g, = wf.autograd.grad(r[0].sum(), p, create_graph=True); g.square().sum().backward()"),
    ("double backward for the argument",
     "g, = wf.autograd.grad(r[0].sum(), args[0], create_graph=True); g.sum().backward()"),
    ("for the result itself", "got = wf.autograd.grad(r[0].sum(), r[0])"),
    ("result written", "r[0].detach().mul_(2); r[0].sum().backward()"),
    ("result written in place", "r[0].mul_(2); r[0].sum().backward()"),
    ("result written in place, the other used", "r[0].mul_(2); r[1].sum().backward()"),
    ("result written, the other used", "with wf.no_grad(): r[1].mul_(2)\nr[0].sum().backward()"),
    ("argument written", "with wf.no_grad(): args[0].mul_(2)\nr[0].sum().backward()"),
    ("parameter written", "with wf.no_grad(): p.mul_(2)\nr[0].sum().backward()"),
    ("parameter's data written", "p.data.mul_(1.1); r[0].sum().backward()"),
    ("parameter's data replaced", "p.data = num(3, seed=k); r[0].sum().backward()"),
    ("result's memory written from NumPy", "r[0].detach().numpy()[:] = 2; r[0].sum().backward()"),
    ("retain_grad on a result", "r[0].retain_grad(); r[0].square().sum().backward(); got = r[0].grad"),
    ("requires_grad_(False) on a parameter", "p.requires_grad_(False); r[0].sum().backward(); p.requires_grad_()"),
    ("detached", "got = r[0].detach_(); got.add_(1)"),
    ("hook on a result", "r[0].register_hook(lambda g: g * 3); r[0].sum().backward()"),
    ("both at once", "wf.autograd.backward([r[0].sum(), r[1].sum()])"),
    ("inside no_grad", "with wf.no_grad(): r[0].sum().detach()\nr[0].sum().backward()"),
    ("kept one",
     "old = globals().get('old'); (r[0].sum() if old is None else (old[0] * r[0]).sum()).backward(); old = None"),
    ("later", "old = globals().get('old'); old = r if old is None else old[0].sum().backward()"),
    ("set into another leaf", "other = num(3, grad=True); (other * r[0]).sum().backward(inputs=[other])"),
    ("only for p", "r[0].sum().backward(inputs=[p])"),
]:  # fmt: skip
    case(f"outside: {name}", BACK, args="num(3, seed=k, grad=True),", after=after, fails=True)

for name, after in [
    ("all later", "if k % 4 == 0:\n    sum(t.sum() for t in kept).backward()\n    kept.clear()"),
    ("in another order", "if k % 3 == 0:\n    [t.sum().backward() for t in reversed(kept)]\n    kept.clear()"),
    ("only the oldest", "if k > 3:\n    kept.pop(0).sum().backward()"),
    ("one written", "if k > 3:\n    kept[-1].mul_(2)\n    kept.pop(0).sum().backward()"),
    ("parameter stepped between", "if k > 2:\n    p.data.add_(0.1)\n    kept.pop(0).sum().backward()"),
]:
    case(f"results kept: {name}", BACK + "kept = []\n", args="num(3, seed=k, grad=True),",
         after="kept.append(r[0])\n" + after, fails=True)  # fmt: skip

for mode in ("wf.no_grad()", "wf.inference_mode()", "wf.enable_grad()", "wf.set_grad_enabled(k % 2 == 0)"):
    case(f"mode around: {mode}", f"""
p = num(3, grad=True)
@way
def f(x):
    y = x * p
    return y, y.requires_grad, wf.is_grad_enabled()
def call(k):
    global args
    args = num(3, seed=k, grad=True)
    if around:
        with {mode}:
            return f(args)
    return f(args)
around = False
""", "around = True", ("around = True", "around = False"), "each: around = k % 3 == 0")  # fmt: skip
