"""Views as arguments and captures, written in place; memory that moves, overlaps or is shared."""

from tests.compiler.hostile.harness import family

case = family("views")

ROWS = "t = num(6, 3)\n@way\ndef f(row, x):\n    {}\n"

# -- views as arguments, whose place moves from call to call -----------------------------------------------------------

for name, body, args in [
    ("copy row", "return row.copy_(x)", "t[k % 6], num(3, seed=k)"),
    ("copy row, nothing returned", "row.copy_(x)", "t[k % 6], num(3, seed=k)"),
    ("add to row", "row += x; return row.sum()", "t[k % 6], num(3, seed=k)"),
    ("row of data", "row.mul_(x); return x + row", "t.data[k % 6], num(3, seed=k)"),
    ("row of detach", "row.add_(x); return row * 2", "t.detach()[k % 6], num(3, seed=k)"),
    ("slice", "row.sub_(x); return row", "t[k % 4 : k % 4 + 2], num(3, seed=k)"),
    ("column", "row.copy_(x); return row", "t[:, k % 3], num(6, seed=k)"),
    ("row of a transpose", "row.copy_(x); return row", "t.T[k % 3], num(6, seed=k)"),
    ("part of a row", "row.fill_(k_of(x)); return row\ndef k_of(x):\n    return 3.0", "t[k % 6, 1:], num(3)"),
    ("one element", "row.add_(x); return row", "t[k % 6, k % 3], num(seed=k)"),
    ("strided rows", "row[0] = x; return row", "t[k % 2 :: 2], num(3, seed=k)"),
    ("narrow", "row.zero_(); return row", "t.narrow(0, k % 5, 1), num(1)"),
    ("select", "row.exp_(); return x + 1", "t.select(0, k % 6), num(1)"),
    ("reshaped", "row.copy_(x); return row", "t.view(-1)[k % 5 : k % 5 + 4], num(4, seed=k)"),
    ("row and its neighbour", "row.copy_(x); return row + x", "t[k % 6], t[(k + 1) % 6]"),
    ("row and base", "row.add_(1); return x.sum()", "t[k % 6], t"),
    ("base and row", "x.add_(1); return row.sum()", "t[k % 6], t"),
    ("overlapping windows", "row.add_(x); return row", "t.view(-1)[k % 3 : k % 3 + 4], t.view(-1)[2 : 6]"),
    ("the same twice, at times", "row.mul_(2); return x + row", "t[k % 6], t[k % 6 if k % 3 else 0]"),
    ("the same object twice, at times", "row.mul_(2); return x + row",
     "*((t, t) if k % 3 == 0 else (t, num(6, 3)))[:],"),
    ("diagonal", "row.fill_(5); return x", "wf.diagonal(t, k % 3), num(1)"),
    ("unbind", "row.copy_(x)", "t.unbind()[k % 6], num(3, seed=k)"),
    ("chunk", "row.copy_(x); return row", "t.chunk(3)[k % 3], num(2, 3, seed=k)"),
    ("squeezed", "row.unsqueeze(0).squeeze(0).copy_(x); return row.unsqueeze(1)", "t[k % 6], num(3, seed=k)"),
    ("index put through a view", "row[1:][x > 0] = 0.5; return row", "t[k % 6], num(2, seed=k)"),
    ("result is a view of the argument", "return row[1:]", "t[k % 6], num(3)"),
    ("result is the argument", "return row", "t[k % 6], num(3)"),
    ("swap", "a = row.clone(); row.copy_(x); x.copy_(a)", "t[k % 6], t[(k * 2) % 6]"),
]:  # fmt: skip
    case(name, ROWS.format(body.replace("; ", "\n    ")), args=args)

for name, body in [
    ("plain read", "return row * 2"), ("copy", "return row.copy_(x)"),
    ("read then write", "y = row * x\n    row.add_(1)\n    return y"),
    ("write then read", "row.add_(x)\n    return row * x"),
    ("write to the other", "x.add_(row)\n    return row * x"),
]:
    case(f"argument pair: {name}", f"""
t = num(6, 3)
a, b = num(3, seed=1), num(3, seed=2)
@way
def f(row, x):
    {body}
""",
        "b = a", "b = t[1]; a = t[1]", "a = t[0]; b = t.view(-1)[1:4]", "a = b.detach()", "a = b.data",
        "b = wf.ones(1).expand(3).clone(); a = b[:]", "a = t[::2, 0]; b = t[0]",
        "each: a = t[k % 6]; b = t[(k * k) % 6]", args="a, b")  # fmt: skip

# -- arguments that alias captures -------------------------------------------------------------------------------------

for name, body in [
    ("write the capture", "w.add_(10)\n    return a * 2"), ("write the argument", "a.add_(10)\n    return w * 2"),
    ("write both", "w.mul_(2)\n    a.add_(1)\n    return w.sum() + a.sum()"), ("read both", "return w.sum() * a"),
    ("branch on the capture", "a.add_(1)\n    if w.sum() > 0:\n        return a * 2\n    return a - 1"),
]:
    case(f"argument and capture: {name}", f"""
w = num(6)
given = num(2, seed=1)
@way
def f(a):
    {body}
""",
        "given = w[2:4]", "given = w[::3]", "given = w.data[1:3]", "given = w.detach()[:2]",
        "w = given[0].expand(6).clone()", "each: given = w[k % 5 : k % 5 + 2]",
        "each: given = w[k % 5 : k % 5 + 2].detach() if k % 2 else num(2, seed=k)", args="given,")  # fmt: skip

case("buffer given as an argument", """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", num(3))
        self.lin = nn.Linear(3, 3)
    def forward(self, x, other):
        self.b += 1
        if other.sum() > 8:
            self.b -= 4
            return x * other
        return self.lin(x) + other
m = M()
other = num(3, seed=1)
f = way(m)
""",
    "other = m.b", "other = m.b.data", "other = m.b[:]", "m.b = other",
    "each: other = m.b if k % 3 else num(3, seed=k)", ("other = m.b", "other = num(3)"),
    args="num(2, 3, seed=k), other")  # fmt: skip

case("weight given as an argument", """
lin = nn.Linear(3, 3)
given = num(3, 3)
@way
def f(x, w):
    with wf.no_grad():
        w.mul_(0.5)
    return lin(x)
""", "given = lin.weight", "given = lin.weight.data", "given = lin.weight.detach().T", "given = lin.weight.data[1:]",
    args="num(2, 3, seed=k), given")  # fmt: skip

# -- captures that come to overlap -------------------------------------------------------------------------------------

for name, body in [
    ("a then b", "a.add_(x)\n    return b * 2"), ("b then a", "b.mul_(2)\n    return a + x"),
    ("both", "a.add_(1)\n    b.add_(a)\n    return a + b"),
]:
    case(f"captures: {name}", f"""
base = num(8)
a, b = num(4, seed=1), num(4, seed=2)
@way
def f(x):
    {body}
""",
        "a = base[:4]; b = base[4:]", "a = base[:4]; b = base[2:6]", "b = a", "b.data = a", "b.data = a.data",
        "a = b[:]", "a = base[1:5]; b = base[1:5]", "b = a.detach()", "a.data = base[:4]; b.data = base[1:5]",
        "each: a = base[k % 4 : k % 4 + 4]", args="num(4, seed=k),", after="")  # fmt: skip

case("captured slots of a list", """
t = num(5, 3)
slots = [t[0], t[1]]
@way
def f(x):
    slots[0].add_(x)
    slots[1].mul_(2)
    return slots[0] + slots[1]
""",
    "slots[0] = t[3]", "slots[1] = t[0]", "slots[:] = [t[4], t[4]]", "slots.reverse()", "slots[0] = slots[1]",
    "t = num(5, 3, seed=9); slots[:] = [t[0], t[1]]", "each: slots[0] = t[k % 5]",
    "each: slots[k % 2] = t[(k * 3) % 5]", args="num(3, seed=k),")  # fmt: skip

case("captured dict of views", """
t = num(4, 4)
rows = {"a": t[0], "b": t[:, 1]}
@way
def f(x):
    rows["a"].copy_(x)
    return rows["b"] * 2
""", 'rows["b"] = t[0]', 'rows["a"] = t[:, 1]', 'rows["a"] = t.T[1]', 'each: rows["a"] = t[k % 4]',
    'each: rows["b"] = t[:, k % 4]', args="num(4, seed=k),")  # fmt: skip

case("view of a parameter captured", """
p = num(4, 3, grad=True)
view = p[1]
@way
def f(x):
    with wf.no_grad():
        view.add_(x)
    return (p * x).sum()
""", "view = p[2]", "view = p.data[3]", "view = p.detach()[0]", "p.data = num(4, 3, seed=5)",
    "with wf.no_grad(): view = p[2:][0]", "each: view = p.detach()[k % 4]", args="num(3, seed=k),")  # fmt: skip

case("attribute re-pointed to another row", """
class Box: pass
box, t = Box(), num(5, 3)
box.row = t[0]
@way
def f(x):
    box.row.copy_(x)
    return box.row.sum()
""", "box.row = t[2]", "each: box.row = t[k % 5]", "box.row = t[0].clone()", "box.row = t.flip(0)[0]",
    "box.row = t.T[0][:3]", args="num(3, seed=k),")  # fmt: skip

# -- expanded tensors, sets of data, other memory ----------------------------------------------------------------------

case("expanded arguments", """
@way
def f(a, b):
    return a * b, a + 1
""", "each: pass", args="num(3, seed=k).expand(2, 3) if k % 3 else num(2, 3), num(1, 1, seed=k).expand(2, 3)")

case("argument changes layout", """
@way
def f(a):
    a.mul_(2)
    return a.reshape(-1)
""", args="(num(3, 4, seed=k), num(4, 3, seed=k).T, num(6, 4)[::2], num(3, 8)[:, ::2])[k % 4],", after="r.add_(100)")

for name, body in [
    ("reshape", "a.reshape(-1)"), ("contiguous", "a.contiguous()"), ("flatten", "a.flatten()"), ("T", "a.T"),
    ("to", "a.to(wf.float64)"), ("expand", "a.expand(2, *a.shape)"), ("detach", "a.detach()"), ("data", "a.data"),
    ("slice", "a[1:]"), ("squeeze", "a.squeeze()"), ("view", "a.view(-1)"), ("full slice", "a[:]"),
    ("clone", "a.clone()"), ("index", "a[[0, 1]]"), ("ellipsis", "a[..., 0]"), ("movedim", "a.movedim(0, 1)"),
    ("requires_grad_", "a.requires_grad_()"), ("plus", "+a"), ("type_as", "a.type_as(a)"),
    ("double", "a.double()"), ("real", "a.real"), ("where", "wf.where(a > 0, a, a)"), ("add_ 0", "a.add_(0)"),
    ("as_tensor", "wf.as_tensor(a)"), ("broadcast", "a.broadcast_to((2, *a.shape))"), ("list of rows", "list(a)"),
    ("split", "a.split(1)"), ("dict", '{"a": a, "again": a, "row": a[0]}'),
]:  # fmt: skip
    case(f"what results share: {name}", f"""
    @way
    def f(a):
        return {body}
    """, args="num(3, 4, seed=k),", after="a = args[0]\nwith wf.no_grad(): a.add_(1)")

case("what results share with captures", """
w, p = num(3, 4), num(3, 4, grad=True)
@way
def f(x):
    return w, w[0], w.T, p, p.detach(), p.data, x, x[0]
""", "w = num(3, 4, seed=3)", "w = p.data", "w = wf.ones(4).expand(3, 4)", after="")

case("data set between calls", """
p = num(3, 4, grad=True)
@way
def f(x):
    return (p * x).sum()
""",
    "p.data = num(3, 4, seed=3)", "p.data = num(4, 3).T", "p.data = num(1, 4).expand(3, 4)",
    "p.data = num(6, 4)[::2]", "p.data = num(4)", "p.data = p.data.float()",
    "each: p.data = num(12, 4)[k % 9 : k % 9 + 3]", "p.data.mul_(2)", "p.detach().zero_()", "p = num(3, 4, seed=5)")

case("window moving over one memory", """
memory = num(20)
@way
def f(a, b):
    a.copy_(b)
    return a
""", args="memory[k : k + 4], memory[k + 2 : k + 6]")

case("window moving backwards over one memory", """
memory = num(20)
@way
def f(a, b):
    a.add_(b)
    b.mul_(2)
""", args="memory[15 - k : 19 - k], memory[14 - k : 18 - k]")

case("row of a row", """
t = num(3, 3, 3)
@way
def f(a):
    a[1].add_(1)
    return t.sum()
""", "t = num(3, 3, 3, seed=2)", args="t[k % 3],")

case("two rows of a captured table given by number", """
t = num(6, 3)
@way
def f(i, j, x):
    t[i] = x
    t[j] += t[i]
    return t[j]
""", args="k % 6, (k * k) % 6, num(3, seed=k)")

case("row number as a tensor", """
t = num(6, 3)
@way
def f(i, x):
    t[i] = x
    return t[i] * 2
""", args="wf.tensor(k % 6), num(3, seed=k)")

case("history of a base written through an argument", """
@way
def f(a, x):
    b = x * 1
    a.copy_(b[0])
    return a * b
""", args="num(4, 3, seed=k)[k % 4], num(2, 3, seed=k, grad=True)")

case("argument is a view of a made tensor", """
def base():
    global leaf, made
    leaf = num(4, 3, seed=k, grad=True)
    made = leaf * 2
    return made
@way
def f(a, x):
    a.mul_(x)
    return a.sum()
""", args="base()[k % 4], num(3, seed=k)", after="made.sum().backward()")

case("ring buffer", """
ring, where = num(5, 3), [0]
@way
def f(x):
    ring[where[0]].copy_(x)
    where[0] = (where[0] + 1) % 5
    return ring.mean(0)
""", "where[0] = 0", "ring = num(5, 3, seed=4)", args="num(3, seed=k),")

case("ring buffer of arguments", """
ring = num(5, 3)
@way
def f(ring, i, x):
    ring[i].copy_(x)
    return ring.mean(0)
""", "ring = ring[:]", "ring = num(10, 3)[::2]", args="ring, k % 5, num(3, seed=k)")

case("unfold and as_strided", """
t = num(10)
@way
def f(w):
    t.add_(1)
    return w.sum(1)
""", args="(t.unfold(0, 3, 2), wf.as_strided(t, (3, 3), (2, 1), k % 3), t.view(5, 2))[k % 3],")
