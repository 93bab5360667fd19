"""Errors: raised inside, caught inside, after writes; counters after failures; and hooks that come and go."""

from tests.compiler.hostile.harness import family

case = family("errors")

STEP = """
lin = nn.Linear(3, 2)
opt = wf.optim.{opt}(lin.parameters(), lr=0.1)
sched = wf.optim.lr_scheduler.StepLR(opt, 3, 0.5)
total, log, limit = num(2), [], 1e9
class Stop(Exception):
    pass
@way
def f(x, i):
    {body}
    return loss
"""
GOOD_BAD = "num(2, 3, seed=k), wf.tensor([0, 1 if k % 4 else 7])"
for name, body in [
    ("index after a step",
     "loss = lin(x).sum()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
     "    total.add_(lin.bias.data)\n    lin.weight[i].sum()\n    sched.step()"),
    ("index before a step",
     "loss = lin(x)[i].sum()\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n    sched.step()"),
    ("index between backward and step",
     "opt.zero_grad()\n    loss = lin(x).sum()\n    loss.backward()\n    total[i]\n    opt.step()\n"
     "    sched.step()"),
    ("index after the schedule",
     "opt.zero_grad()\n    loss = lin(x).sum()\n    loss.backward()\n    opt.step()\n    sched.step()\n"
     "    total[i]"),
    ("index caught",
     "opt.zero_grad()\n    try:\n        loss = lin(x)[i].sum()\n    except IndexError:\n"
     "        loss = lin(x).sum() * 0.5\n    loss.backward()\n    opt.step()"),
    ("index caught, state written",
     "loss = lin(x).sum().detach()\n    try:\n        total.add_(1)\n        loss = loss + total[i].sum()\n"
     "        total.add_(10)\n    except IndexError as error:\n        total.sub_(5)\n"
     "        log.append(type(error).__name__)"),
    ("index caught by a bare except",
     "loss = x.sum()\n    try:\n        loss = loss + x.T[i].sum()\n    except Exception:\n        total.zero_()"),
    ("finally", "loss = x.sum()\n    try:\n        loss = total[i].sum()\n    finally:\n        total.add_(1)"),
    ("raised again",
     "loss = x.sum()\n    try:\n        loss = total[i].sum()\n    except IndexError as error:\n"
     "        raise Stop('mine') from error"),
    ("else branch",
     "loss = x.sum()\n    try:\n        y = total[i]\n    except IndexError:\n        loss = loss * "
     "2\n    else:\n"
     "        loss = loss + y.sum()"),
    ("suppressed",
     "import contextlib\n    loss = x.sum()\n    with contextlib.suppress(IndexError):\n        total.add_(1)\n"
     "        total[i].sum()\n        total.add_(1)"),
    ("raised by the user on a value",
     "loss = lin(x).sum()\n    total.add_(1)\n    if i[1] > 5:\n        raise Stop('value')\n    total.mul_(2)"),
    ("raised before anything", "if i[1] > 5:\n        raise Stop('first')\n    loss = x.sum() * 2"),
    ("assert", "loss = lin(x).sum()\n    total.add_(1)\n    assert i[1] < 5, f'too large'\n    total.mul_(2)"),
    ("embedding",
     "opt.zero_grad()\n    loss = (F.embedding(i, lin.weight) * x).sum()\n    loss.backward()\n    opt.step()"),
    ("gather", "total.add_(1)\n    loss = wf.gather(total, 0, i).sum()\n    total.mul_(2)"),
    ("index_add", "total.mul_(1.5)\n    total.index_add_(0, i, x[:, 0])\n    loss = total.sum()"),
    ("scatter", "total.scatter_(0, i, x[:, 0])\n    loss = total.sum()"),
    ("write through an index", "total[i] = x[:, 0]\n    loss = total.sum()"),
    ("index_select", "loss = wf.index_select(x, 1, i).sum()\n    total.add_(1)"),
    ("cross_entropy", "opt.zero_grad()\n    loss = F.cross_entropy(lin(x), i)\n    loss.backward()\n    opt.step()"),
    ("one_hot", "loss = F.one_hot(i, 2).sum() + x.sum()\n    total.add_(1)"),
    ("integer division", "total.add_(1)\n    loss = (5 // (i[1] - 7).item()) + x.sum()"),
    ("python list", "total.add_(1)\n    loss = [x.sum(), x.mean()][int(i[1])]"),
    ("python dict", "total.add_(1)\n    loss = {0: x.sum(), 1: x.mean()}[int(i[1])]"),
    ("python list caught",
     "try:\n        loss = [x.sum(), x.mean()][int(i[1])]\n    except IndexError:\n        loss = x.max()"),
    ("item of many", "total.add_(1)\n    loss = x.sum()\n    total[: int(i[1])].item() if i[1] > 5 else None"),
    ("bool of many caught",
     "try:\n        loss = x.sum() if x[: int(i[1]), 0] > -99 else x.mean()\n    except Exception:\n"
     "        loss = x.min()"),
    ("in backward",
     "opt.zero_grad()\n    y = lin(x)\n    y.register_hook(bad if i[1] > 5 else good)\n    loss = y.sum()\n"
     "    loss.backward()\n    opt.step()"),
]:  # fmt: skip
    case(
        name,
        STEP.format(opt="Adam", body=body) + "def bad(g):\n    raise Stop('hook')\ndef good(g):\n    return g\n",
        args=GOOD_BAD, after="", fails=True)  # fmt: skip

for name, change in [
    ("shape", "each: x = num(2, 3, seed=k) if k % 4 else num(2, 4)"),
    ("dtype", "each: x = num(2, 3, seed=k) if k % 4 else wf.ones(2, 3, dtype=wf.int64)"),
    ("no tensor", "each: x = num(2, 3, seed=k) if k % 4 else None"),
    ("string", "each: x = num(2, 3, seed=k) if k % 4 else 'abc'"),
    ("number", "each: x = num(2, 3, seed=k) if k % 4 else 3.0"),
    ("empty", "each: x = num(2, 3, seed=k) if k % 4 else num(0, 3)"),
    ("array", "each: x = num(2, 3, seed=k) if k % 4 else np.ones((2, 3))"),
]:
    case(f"argument of another kind: {name}", """
lin = nn.Linear(3, 2)
opt = wf.optim.SGD(lin.parameters(), lr=0.1, momentum=0.5)
count, x = num(2), num(2, 3)
@way
def f(x):
    count.add_(1)
    loss = lin(x).square().sum()
    loss.backward()
    opt.step()
    return loss
""", change, args="x,", after="", fails=True)

for change in [
    "lin.weight = nn.Parameter(num(2, 4))", "lin.bias = None", "del lin.bias", "lin = None", "del lin",
    "opt = None", "opt.param_groups[0]['lr'] = 'abc'", "opt.param_groups.clear()", "lin.weight.data = num(5)",
    "lin.weight.requires_grad_(False); lin.bias.requires_grad_(False)",
    "lin.weight.grad = num(2, 3); lin.weight.data = num(2, 4)", "lin.forward = None",
    "del lin.weight; lin.weight = num(2, 3)", ("del lin.weight", "lin.weight = nn.Parameter(num(2, 3))"),
]:  # fmt: skip
    case("world broken", """
lin = nn.Linear(3, 2)
opt = wf.optim.Adam(lin.parameters(), lr=0.1)
count, log = num(2), []
@way
def f(x):
    count.add_(1)
    loss = lin(x).square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    count.mul_(2)
    return loss
""", change, args="num(2, 3, seed=k),", after="", fails=True)


for arguments in ("*[num(3)] * (1 + k % 3)", "num(3), **(dict(z=3) if k % 3 else dict(q=1))", "num(3), **dict(y=k % 2)",
                  "*([] if k % 4 == 0 else [num(3, seed=k)])", "num(3), 2, *([3] if k % 4 == 0 else [])"):  # fmt: skip
    case(f"wrong call: {arguments}", "@way\ndef f(x, y=1, *, z=2):\n    return x * y * z\ndef call(k):\n"
         f"    return f({arguments})\n", fails=True)  # fmt: skip

case("a generator that fails", """
def parts(x):
    for i in range(3):
        if x[0] > 1:
            raise ValueError("large")
        yield x * i
@way
def f(x):
    return sum(parts(x))
""", args="num(3, seed=k) + k % 2,", fails=True)

case("recursion too deep", """
@way
def f(x, n):
    return x if n <= 0 else f(x * 2, n - 1)
""", args="num(2, seed=k), 3 if k % 4 else 100000", fails=True)

case("a context manager that swallows", """
log = []
class Swallow:
    def __enter__(self):
        log.append("in")
    def __exit__(self, kind, error, trace):
        log.append("out" if kind is None else kind.__name__)
        return True
@way
def f(x, i):
    with Swallow():
        x = x * 2
        x = x[i] + 1
    return x
""", args="num(3, seed=k), wf.tensor([k % 4])")

case("error in a property", """
class Box:
    limit = 5
    @property
    def value(self):
        if self.limit < 3:
            raise AttributeError("too small")
        return 2.0
    def __getattr__(self, name):
        return 7.0
box = Box()
@way
def f(x):
    return x * box.value
""", "box.limit = 1", "Box.limit = 2", ("box.limit = 1", "del box.limit"), "Box.value = 4.0")

case("error raised by a captured function", """
def helper(x):
    return x * 2
@way
def f(x):
    try:
        return helper(x)
    except ValueError:
        return x - 1
""", "def helper(x): raise ValueError('now')", ("def helper(x): raise ValueError", "def helper(x): return x * 2"),
    "def helper(x): raise KeyError('other')", "del helper", fails=True)  # fmt: skip

case("stop while the optimiser has a closure", """
w = num(3, grad=True)
opt = wf.optim.SGD([w], lr=0.1)
bad = False
@way
def f(x):
    def closure():
        opt.zero_grad()
        loss = (w * x).square().sum()
        loss.backward()
        if bad:
            raise ValueError("inside")
        return loss
    return opt.step(closure).detach()
""", "bad = True", ("bad = True", "bad = False"), args="num(3, seed=k),", fails=True)

hook = family("hooks")

FORWARD = """
lin = nn.Linear(3, 2)
w = num(3, grad=True)
log, opt = [], wf.optim.SGD([*lin.parameters(), w], lr=0.1)
def double(g):
    log.append(1)
    return g * 2
def look(*a):
    log.append(len(a))
def step(p):
    with wf.no_grad():
        p.sub_(p.grad)
    p.grad = None
handles = []
@way
def f(x):
    {}
"""
CHANGES = [
    "w.register_hook(double)", "lin.weight.register_hook(double)", "h = w.register_hook(double); h.remove()",
    ("handles.append(w.register_hook(double))", "handles.pop().remove()"),
    "w.register_post_accumulate_grad_hook(step)", "lin.weight.register_post_accumulate_grad_hook(step)",
    "lin.register_forward_hook(lambda m, a, y: y * 3)", "lin.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
    "lin.register_forward_hook(look)",
    "lin.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,) if gi[0] is not None else None)",
    ("handles.append(lin.register_forward_hook(lambda m, a, y: y * 3))", "handles.pop().remove()"),
    "w.register_hook(lambda g: log.append(g.sum().item()))", "w.register_hook(lambda g: None)",
    "each: w.register_hook(double) if k % 5 == 0 else None",
    "lin.register_full_backward_pre_hook(lambda m, go: (go[0] * 0.5,))",
    "lin.bias.register_hook(lambda g: g.mul_(2) if False else g + 1)",
    "nn.Linear(3, 2).register_forward_hook(look)", "opt.register_step_post_hook(look)",
    "opt.register_step_pre_hook(look)",
]  # fmt: skip
hook("backward outside", FORWARD.format("return lin(x * w).sum()"), *CHANGES[:17], args="num(4, 3, seed=k),")
hook("backward inside", FORWARD.format("opt.zero_grad()\n    loss = lin(x * w).square().sum()\n    loss.backward()\n"
     "    opt.step()\n    return loss.detach()"), *CHANGES, args="num(4, 3, seed=k),", fails=True)  # fmt: skip
hook(
    "backward inside, no step", FORWARD.format("lin(x * w).sum().backward()"), *CHANGES[:17],
    args="num(4, 3, seed=k),")  # fmt: skip
hook(
    "autograd.grad inside",
    FORWARD.format("return wf.autograd.grad(lin(x * w).square().sum(), [w, lin.weight, lin.bias])"), *CHANGES[:13],
    args="num(4, 3, seed=k),")  # fmt: skip

for name, body in [
    ("read only", "return x * 2"), ("gradient inside", "(x * 2).sum().backward(); return x.grad"),
    ("gradient by grad", "return wf.autograd.grad((x * x).sum(), x)"),
]:  # fmt: skip
    hook(f"on an argument: {name}", f"""
log, with_hook = [], False
@way
def f(x):
    {body}
def given(k):
    x = num(3, seed=k, grad=True)
    if with_hook:
        x.register_hook(lambda g: g * 3)
    if with_hook == "both":
        x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().item()))
    return x
""",
        "with_hook = True", "with_hook = 'both'", ("with_hook = True", "with_hook = False"),
        "each: with_hook = k % 3 == 0", args="given(k),")  # fmt: skip

hook("on an argument that is kept", """
x, log = num(3, grad=True), []
@way
def f(x):
    return x.sin() * x
""", "x.register_hook(lambda g: g * 3)", "x.register_post_accumulate_grad_hook(lambda p: log.append(1))",
    "x.register_hook(log.append)", "x.requires_grad_(False)", args="x,")  # fmt: skip

hook("on an argument that was made", """
x, log = num(3, grad=True), []
@way
def f(y):
    return y.sin() * y
def made(k):
    y = x * 2
    if hooked:
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
    return y
hooked = False
""", "hooked = True", ("hooked = True", "hooked = False"), args="made(k),")

hook("saved tensors", """
w, on = num(3, grad=True), False
log = []
def pack(t):
    log.append(tuple(t.shape))
    return t
def unpack(t):
    log.append("back")
    return t * 2
@way
def f(x):
    return (x * w).sin()
def call(k):
    x = num(3, seed=k, grad=True)
    if on:
        with wf.autograd.graph.saved_tensors_hooks(pack, unpack):
            return f(x)
    return f(x)
""", "on = True", ("on = True", "on = False"), "each: on = k % 3 == 0")

hook("registered inside", """
w, log = num(3, grad=True), []
factor = 2.0
@way
def f(x):
    y = x * w
    y.register_hook(lambda g: g * factor)
    return y.sum()
""", "factor = 5.0", "each: factor = float(k)", args="num(3, seed=k),")

hook("registered and used inside", """
w, log = num(3, grad=True), []
factor = 2.0
@way
def f(x):
    y = x * w
    y.register_hook(lambda g: g * factor)
    y.register_hook(lambda g: log.append(g.sum().item()))
    y.sum().backward()
    return w.grad.clone()
""", "factor = 5.0", "each: factor = float(k)", "w.grad = None", args="num(3, seed=k),")

hook("registered on a parameter inside", """
w, on = num(3, grad=True), True
@way
def f(x):
    handle = w.register_hook(lambda g: g * 2)
    (x * w).sum().backward()
    handle.remove()
    return w.grad.clone()
""", "w.grad = None", "w.register_hook(lambda g: g + 1)", "w = num(3, seed=4, grad=True)", args="num(3, seed=k),")
