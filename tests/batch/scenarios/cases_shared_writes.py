"""Tensors of all examples that examples write in place: weights, counters, confusion matrices, codebooks."""

from tests.batch.scenarios.harness import family

scenario, case = family("shared")

# A shared weight `w` without a gradient is read, written, and read again; what stands in `do` is the write.
# Its memory is an array's, which others may see, or nobody's but its own.
for name, do in {
    "sub_": "w.sub_(1.0)",
    "mul_": "w.mul_(0.5)",
    "add_ with alpha": "w.add_(x.detach(), alpha=0.1)",
    "data.add_": "w.data.add_(1.0)",
    "detach().mul_": "w.detach().mul_(2.0)",
    "item of w": "w[0] += 1",
    "set item": "w[1] = i",
    "slice": "w[1:] = x.detach()[1:]",
    "slice of slice": "w[1:][0] *= 3",
    "mask": "w[w > 0] = 0.25",
    "mask of x": "w[x.detach() > 0] += 1",
    "ellipsis": "w[...] = w * 2",
    "copy_ of itself times two": "w.copy_(w * 2)",
    "copy_ of x": "w.copy_(x.detach())",
    "fill_": "w.fill_(i)",
    "zero_": "w.zero_()",
    "clamp_": "w.clamp_(-0.5, 0.5)",
    "lerp_": "w.lerp_(x.detach(), 0.1)",
    "index_put_": "w.index_put_((wf.tensor([0, 2]),), x.detach()[:2])",
    "index_put_ accumulate": "w.index_put_((wf.tensor([1, 1]),), x.detach()[:2], accumulate=True)",
    "index_add_": "w.index_add_(0, wf.tensor([2, 2, 0]), x.detach())",
    "index_copy_": "w.index_copy_(0, wf.tensor([2, 0]), x.detach()[:2])",
    "index_fill_": "w.index_fill_(0, wf.tensor([i % 3]), 7.0)",
    "scatter_": "w.scatter_(0, wf.tensor([i % 3]), x.detach()[:1])",
    "scatter_add_": "w.scatter_add_(0, wf.tensor([0, 0, 1]), x.detach())",
    "masked_fill_": "w.masked_fill_(x.detach() < 0, -1.0)",
    "view": "w.view(3, 1).add_(1)",
    "flat view": "w.view(-1)[2] = 5.0",
    "unsqueeze": "w[None].mul_(3)",
    "row of a view": "w.view(1, 3)[0].add_(1)",
    "narrow": "w.narrow(0, 0, 2).neg_()",
    "chunk": "w.chunk(2)[0].mul_(2)",
    "unbind": "w.unbind(0)[i % 3].add_(10)",
    "numpy": "w.numpy()[0] += 1",
    "set data": "w.data = w.data + 1",
    "augmented in no_grad": "with wf.no_grad():\n    w.add_(x)",
    "only some": "if i % 2:\n    w.add_(1)",
    "only some, by value": "if x.sum() > 0:\n    w.add_(1)",
    "after item": "if (x * w).sum().item() > 0:\n    w.add_(1)",
    "by item": "w.add_(x.sum().item())",
    "two writes": "w.add_(1)\nw.mul_(2)",
    "swap of rows": "w[0], w[2] = w[2].clone(), w[0].clone()",
    "divide by norm": "w.div_(w.norm())",
    "pow_": "w.pow_(2)",
    "tanh_": "w.tanh_()",
    "normal_ never": "w.normal_() if i > 90 else None",
    "addcmul_": "w.addcmul_(x.detach(), x.detach(), value=0.5)",
    "out of the shared, into own": "k = w.clone()\nk.add_(1)",
    "nn.init": "nn.init.constant_(w, i)",
    "fill_diagonal": "w.view(1, 3).fill_diagonal_(9.0)",
    "put_": "w.put_(wf.tensor([1]), wf.tensor([2.5], dtype=wf.float64))",
    "renorm by max": "w.div_(w.abs().max())",
    "cumsum_": "w.cumsum_(0)",
    "setitem of tensor index": "w[wf.tensor(i % 3)] = x.detach()[0]",
    "sort into itself": "w.copy_(w.sort(descending=bool(i % 2))[0])",
}.items():
    body = "before = x.detach() * w\n" + do + "\nafter = x.detach() + w\nreturn before, after"
    case(name, "w = num(3, seed=9)", body, "w")
    case(name + ", own memory", "w = num(3, seed=9).clone()", body, "w")

# The same with a parameter, whose reads are differentiated: what was read before a write may not be.
for name, do in {
    "parameter data": "w.data.add_(1.0)",
    "parameter no_grad": "with wf.no_grad():\n    w.sub_(0.1 * x)",
    "parameter row": "with wf.no_grad():\n    w[0] += 1",
    "parameter copy_": "with wf.no_grad():\n    w.copy_(w * 2)",
    "parameter data replaced": "w.data = w.data * 2",
    "parameter detach": "w.detach().mul_(0.5)",
    "parameter after item": "if h.sum().item() > 0:\n    w.data.add_(1)",
    "parameter clamp": "w.data.clamp_(-1, 1)",
    "parameter numpy": "w.detach().numpy()[1] = i",
}.items():
    case(name, "w = weight(3)", "h = x + w\n" + do + "\nreturn h, x + w, h * 2", "w")
    own = "w = weight(3).detach().clone().requires_grad_()"
    case(name + ", own memory", own, "h = x + w\n" + do + "\nreturn h, x + w, h * 2", "w")
    case(name + ", product", "w = weight(3)", "h = x * w\n" + do + "\nreturn h.detach(), x * w.detach()", "w")

case("write alone is returned", "w = num(3)", "return w.add_(1)", "w")
case("view of the shared is returned", "w = num(3)", "w.add_(1)\nreturn w[1:]", "w")
case("the shared is returned as it is", "w = num(3)", "w.add_(1)\nreturn w", "w")
case("sum of the shared after each", "w = num(3)", "w.add_(x.detach())\nreturn w.sum()", "w")
case("float of the shared after each", "w = num(3)", "w.add_(x.detach())\nreturn float(w.sum())", "w")
case("clone of the shared after each", "w = num(3)", "w.mul_(2)\nreturn w.clone()", "w")
case("a counter of examples", "n = wf.tensor(0)", "n.add_(1)\nreturn x * n", "n")
case("a counter read by item", "n = wf.tensor(0)", "n += 1\nreturn x * n.item()".replace("n += 1", "n.add_(1)"), "n")
case("a counter that stops", "n = wf.tensor(0)", "n.add_(1)\nif n > 2:\n    return None\nreturn x * 2", "n")
case("a counter by nonlocal", "n = wf.tensor(0)", "nonlocal n\nn = n + 1\nreturn x * n", "n")
case("a total by nonlocal", "t = wf.zeros(3).double()", "nonlocal t\nt = t + x\nreturn t * 1", "t")
case("a total by augmented nonlocal", "t = wf.zeros(3).double()", "nonlocal t\nt += x.detach()\nreturn t", "t")
case("a total with history", "t = [wf.zeros(3).double()]", "t[0] += x\nreturn x * 2", "t")
case("a total without nonlocal", "t = {'s': 0.0}", "t['s'] = t['s'] + x.sum()\nreturn x", "t")
case("a total of numbers", "t = {'s': 0.0}", "t['s'] += x.sum().item()\nreturn t['s']", "t")

case("confusion matrix", "cm = wf.zeros(3, 3, dtype=wf.long)\nlin = mod(nn.Linear(3, 3))",
     "p = lin(x).argmax()\ncm[i % 3, p] += 1\nreturn p", "cm")  # fmt: skip
case("confusion matrix by item", "cm = wf.zeros(3, 3, dtype=wf.long)\nlin = mod(nn.Linear(3, 3))",
     "p = lin(x).argmax().item()\ncm[i % 3, p] += 1\nreturn lin(x)", "cm")  # fmt: skip
case("histogram", "hist = wf.zeros(4)", "hist[int(x.argmax())] += 1\nreturn hist.sum()", "hist")
case("bincount", "hist = wf.zeros(3, dtype=wf.long)",
     "hist.add_(wf.bincount(x.argmax()[None], minlength=3))\nreturn hist.clone()", "hist")  # fmt: skip
case("running mean", "m = wf.zeros(3).double()",
     "m.mul_(0.9).add_(x.detach(), alpha=0.1)\nreturn x - m", "m")  # fmt: skip
case("running mean by lerp", "m = wf.zeros(3).double()", "m.lerp_(x.detach(), 0.1)\nreturn x - m.detach()", "m")
case("running mean, read first", "m = wf.zeros(3).double()",
     "y = x - m\nm.copy_(0.5 * m + 0.5 * x.detach())\nreturn y", "m")
case("ema codebook", "book = num(4, 3, seed=3)", """
    k = ((book - x.detach()) ** 2).sum(1).argmin()
    q = book[k]
    book[k] = 0.9 * book[k] + 0.1 * x.detach()
    return x + (q - x).detach(), k
""", "book")  # fmt: skip
case("ema codebook by item", "book = num(4, 3, seed=3)", """
    k = ((book - x.detach()) ** 2).sum(1).argmin().item()
    book[k].lerp_(x.detach(), 0.1)
    return book[k].clone(), k
""", "book")  # fmt: skip
case("online k-means with counts", "c, n = num(2, 3, seed=3), wf.ones(2).double()", """
    k = (c - x.detach()).norm(dim=1).argmin()
    n[k] += 1
    c[k] += (x.detach() - c[k]) / n[k]
    return c.clone(), n.clone()
""", "c, n")  # fmt: skip
case("max seen so far", "best = wf.full((), -9.0).double()", """
    s = x.sum().detach()
    if s > best:
        best.copy_(s)
        return 'new', best.clone()
    return 'old', best.clone()
""", "best")  # fmt: skip
case("memory with a pointer", "mem, p = wf.zeros(3, 3).double(), wf.tensor(0)", """
    mem[p] = x.detach()
    p.copy_((p + 1) % 3)
    return (mem @ x).softmax(0)
""", "mem, p")  # fmt: skip
case("queue by roll", "mem = wf.zeros(3, 3).double()", """
    mem.copy_(wf.cat([mem[1:], x.detach()[None]]))
    return mem.sum(0) * x
""", "mem")  # fmt: skip
case("perceptron", "w = wf.zeros(3).double()", """
    y = 1.0 if i % 2 else -1.0
    if (y * (x.detach() @ w)).item() <= 0:
        w.add_(x.detach(), alpha=y)
        return True
    return False
""", "w")  # fmt: skip
case("hebbian", "W = num(3, 3, seed=4)",
     "h = (W @ x.detach()).tanh()\nW.add_(wf.outer(h, x.detach()), alpha=0.1)\nreturn h", "W")
case("fast weights of one's own", "W = weight(3, 3)", """
    A = wf.zeros(3, 3).double()
    for _ in range(3):
        h = (W @ x + A @ x).tanh()
        A = 0.9 * A + wf.outer(h, x)
    return h
""", "W")  # fmt: skip
case("two shared that are one memory", "w = num(4)\nv = w[1:]", "v.add_(x.detach())\nreturn w.sum() * 1, v * 2", "w, v")
case("view taken first, base written", "w = num(4)\nv = w[1:]", "w.mul_(2)\nreturn v * x.detach()", "w, v")
case("transpose written", "W = num(3, 3)\nT = W.T", "T[0] += x.detach()\nreturn W @ x.detach()", "W, T")
case("held numpy", "w = num(3)\na = w.numpy()", "w.add_(1)\nreturn a.copy(), float(a[0])", "w, a")
case("from_numpy written by numpy", "a = np.ones(3)\nw = wf.from_numpy(a)",
     "y = x.detach() * w\na[:] += 1\nreturn y", "w, a")
case("from_numpy written by tensor", "a = np.ones(3)\nw = wf.from_numpy(a)", "w.add_(1)\nreturn a.sum(), x * w", "w, a")
case("held detach", "w = weight(3)\nd = w.detach()", "d.add_(1)\nreturn x + w", "w, d")
case("held data", "w = weight(3)\nd = w.data", "w.data.add_(1)\nreturn x.detach() * d", "w, d")
case("held expand", "w = num(1)\ne = w.expand(3)", "w.add_(1)\nreturn x * e", "w, e")
case("held as_strided", "w = num(4)\ns = w.as_strided((2, 2), (1, 1))", "w[1] += 1\nreturn s.sum() * x", "w, s")
case("readers hold what was", "w = num(3)\nkept = []", "kept.append(w * 1)\nw.add_(1)\nreturn kept[-1]", "w, kept")
case("readers hold views", "w = num(3)\nkept = []", "kept.append(w[:2])\nw.add_(1)\nreturn kept[-1] * 1", "w, kept")
case("swap of two shared", "a, b = num(3), num(3, seed=2)", """
    t = a.clone()
    a.copy_(b)
    b.copy_(t)
    return a - x.detach()
""", "a, b")  # fmt: skip
case("list of shared tensors, each written by one", "ws = [wf.zeros(3).double() for _ in range(4)]",
     "ws[i] += x.detach()\nreturn ws[i - 1].sum()", "ws")  # fmt: skip
case("row of an own table", "T = wf.zeros(4, 3).double()", "T[i] = x.detach()\nreturn T[: i + 1].sum(0)", "T")
case("row with history", "T = wf.zeros(4, 3).double()", "T[i] = x * 2\nreturn x.sum()", "T")
case("dp table", "T = wf.zeros(5, 3).double()", "T[i + 1] = T[i] + x.detach()\nreturn T[i + 1] * 1", "T")
case("bool flags", "seen = wf.zeros(3, dtype=wf.bool)",
     "k = x.argmax()\nnew = not seen[k]\nseen[k] = True\nreturn new", "seen")
case("integer bits", "b = wf.tensor(0)", "b.bitwise_or_(1 << i)\nreturn b.item()", "b")
case("half counter", "n = wf.zeros(2, dtype=wf.float16)", "n += 0.5\nreturn n * 1".replace("n +=", "n[:] +="), "n")
case("write of a wrong shape is caught", "w = num(3)",
     "try:\n    w.add_(wf.ones(4))\nexcept Exception:\n    w.add_(1)\nreturn w.sum()", "w")  # fmt: skip
case("write to a leaf is refused", "w = weight(3)", "w.add_(1)\nreturn x", "w", raises=True)
