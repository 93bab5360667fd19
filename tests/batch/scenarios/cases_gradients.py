"""Gradients inside examples: backward, autograd.grad, optimisers, hooks, and leaves of one's own."""

from tests.batch.scenarios.harness import family

scenario, case = family("gradients")

W = "w, log = weight(3), []\n"
LIN = "lin = mod(nn.Linear(3, 2))\nlog = []\n"
for name, body in {
    "backward inside": "(x * w).sum().backward()\nreturn x.grad",
    "backward inside, grad read": "(x * w).sum().backward()\nreturn w.grad.clone()",
    "backward inside, grad held": "(x * w).sum().backward()\nreturn w.grad",
    "grad None first": "w.grad = None\n(x * w).sum().backward()\nreturn w.grad",
    "grad None first, clone": "w.grad = None\n(x * w).sum().backward()\nreturn w.grad.clone()",
    "grad zeroed first": "if w.grad is not None:\n    w.grad.zero_()\n(x * w).sum().backward()\nreturn w.grad.clone()",
    "grad counted": "(x * w).sum().backward()\nlog.append(w.grad.norm().item())\nreturn x.grad",
    "grad written": "(x * w).sum().backward()\nw.grad.clamp_(-1, 1)\nreturn w.grad.clone()",
    "grad set by hand": "w.grad = x.detach() * 2\nreturn x",
    "grad is None asked": "new = w.grad is None\n(x * w).sum().backward()\nreturn new",
    "backward of a shared loss kept": "y = (x * w * w).sum()\ny.backward(retain_graph=True)\nreturn y",
    "backward with a gradient": "(x * w).backward(w.detach())\nreturn x.grad.clone()",
    "backward of some": "if i % 2:\n    (x * w).sum().backward()\nreturn w.grad is None",
    "backward by value": "y = (x * w).sum()\nif y > 0.3:\n    y.backward()\nreturn y.item()",
    "backward and result": "(x * w).sum().backward()\nreturn (x * w * 2).sum()",
    "inputs= of backward": "(x * w).sum().backward(inputs=[x])\nreturn w.grad, x.grad",
    "grad of x": "(g,) = wf.autograd.grad((x * w).tanh().sum(), x)\nreturn g",
    "grad of w": "(g,) = wf.autograd.grad((x * w).tanh().sum(), w)\nreturn g",
    "grad of w, differentiable": "(g,) = wf.autograd.grad((x * w).tanh().sum(), w, create_graph=True)\nreturn g.sum()",
    "grad of what is unused": "return wf.autograd.grad(x.sum(), [x, w], allow_unused=True)",
    "gradient penalty": "(g,) = wf.autograd.grad((x * w).tanh().sum(), x, create_graph=True)\n"
        "return (g.norm() - 1) ** 2",
    "double backward": "y = (x * w).tanh().sum()\n(g,) = wf.autograd.grad(y, x, create_graph=True)\n"
        "(g * g).sum().backward()\n"
                       "return y.detach()",
    "inner steps": "v = w\nfor _ in range(2):\n"
        "    (g,) = wf.autograd.grad(((x * v) ** 2).sum(), v, create_graph=True)\n"
                   "    v = v - 0.1 * g\nreturn v * x",
    "hessian row": "y = (x * w).tanh().sum()\n(g,) = wf.autograd.grad(y, x, create_graph=True)\n"
                   "return [wf.autograd.grad(v, x, retain_graph=True)[0] for v in g]",
    "own leaf": "z = x.detach().requires_grad_()\n(z * w).sum().backward()\nreturn z.grad, z",
    "own leaf, new_empty": "z = x.detach().new_empty(1, 3).fill_(0.0).requires_grad_()\nreturn z, (z + x) * w",
    "own leaf, zeros": "z = wf.zeros(3, dtype=wf.float64, requires_grad=True)\nreturn z, ((z + x) * w).tanh()",
    "own leaf, clone": "z = x.detach().clone().requires_grad_()\ny = z * w\nreturn z, y",
    "own leaf, stepped": "z = wf.zeros(3, dtype=wf.float64, requires_grad=True)\nfor _ in range(3):\n"
        "    ((z - x.detach()) ** 2).sum()"
                         ".backward()\n    with wf.no_grad():\n        z -= 0.1 * z.grad\n    z.grad = None\nreturn z",
    "own leaf, stepped by detach": "z = wf.zeros(3).double()\nfor _ in range(3):\n    z = z.detach().requires_grad_()\n"
                                   "    (g,) = wf.autograd.grad(((z - x) ** 2).sum(), z)\n    z = z - 0.1 * g\n"
                                   "return z",
    "own leaf, optimiser": "z = wf.zeros(3, dtype=wf.float64, requires_grad=True)\no = wf.optim.Adam([z], lr=0.1)\n"
                           "for _ in range(3):\n    o.zero_grad()\n    ((z - x.detach()) ** 2).sum().backward()\n"
                           "    o.step()\nreturn z",
    "own leaf, by value": "z = wf.ones(3, dtype=wf.float64, requires_grad=True)\ny = (z * x).sum()\n"
        "return y * 2 if y > 0 else z",
    "own parameter": "p = nn.Parameter(x.detach() * 2)\nreturn p, p * w",
    "own linear": "lin = mod(nn.Linear(3, 2), 20 + i)\nreturn lin(x), lin.weight",
    "own linear, trained": "lin = mod(nn.Linear(3, 1), 20 + i)\nlin(x.detach()).sum().backward()\n"
        "return lin.weight.grad",
    "requires_grad_ of a result": "y = (x * w).detach().requires_grad_()\nz = y * 2\nz.sum().backward()\n"
        "return y.grad, y",
    "requires_grad of x changed": "x.requires_grad_(False)\ny = x * w\nx.requires_grad_(True)\nreturn y, x * 2",
    "requires_grad of w changed by one": "if i == 2:\n    w.requires_grad_(False)\nreturn x.detach() * w",
    "requires_grad of w changed and back": "w.requires_grad_(False)\ny = x.detach() * w\nw.requires_grad_(True)\n"
        "return y",
    "requires_grad asked": "y = x * w\nreturn y.requires_grad, y.is_leaf, x.is_leaf, y.detach().requires_grad",
    "detach": "y = x * w\nreturn y.detach() * x, y",
    "detach_": "y = x * w\ny.detach_()\nreturn y * w",
    "data": "y = x * w\nreturn y.data * w, y",
    "no_grad inside": "with wf.no_grad():\n    y = x * w\nreturn y, x * w",
    "no_grad as decorator": "@wf.no_grad()\ndef g(t):\n    return t * w\nreturn g(x), x * w",
    "no_grad with a look": "with wf.no_grad():\n    y = (x * w).sum()\n    if y > 0:\n        y = y * 2\nreturn y * w",
    "no_grad of some": "with wf.set_grad_enabled(i % 2 == 0):\n    y = x * w\n    s = y.sum().item()\nreturn y, s",
    "enable_grad in no_grad": "with wf.no_grad(), wf.enable_grad():\n    y = x * w\nreturn y",
    "set_grad_enabled without with": "wf.set_grad_enabled(False)\ny = x * w\nwf.set_grad_enabled(True)\n"
        "return y, x * w",
    "set_grad_enabled left": "y = x * w\nwf.set_grad_enabled(i % 2 == 1)\nreturn y.requires_grad",
    "inference_mode": "with wf.inference_mode():\n    y = x * w\nreturn y.clone() * w, y.is_inference()",
    "is_grad_enabled": "with wf.no_grad():\n    a = wf.is_grad_enabled()\nreturn a, wf.is_grad_enabled()",
    "grad_fn asked": "y = x * w\nreturn y.grad_fn is None, x.grad_fn is None, y.sum().grad_fn is not None",
    "detach of a view": "y = (x * w)[1:].detach()\nreturn y, x * 2",
    "straight through": "q = (x * w).round()\nreturn x * w + (q - x * w).detach()",
    "clamp with gradient": "return (x * w).clamp(-0.5, 0.5)",
    "same leaf twice": "return x * x + w * w * w",
    "mask by multiplication": "return x * (x > 0) * w",
    "grad through setitem": "y = wf.zeros(3).double()\ny[1:] = (x * w)[:2]\nreturn y",
    "grad through list": "return wf.stack([v * 2 for v in x]) * w",
}.items():  # fmt: skip
    case(name, W, body, "w, log")

STEP = """
loss = (lin(x) ** 2).sum()
opt.zero_grad()
loss.backward()
{before}opt.step()
{after}return loss.detach()
"""
for name, opt, before, after in [
    ("SGD", "wf.optim.SGD(lin.parameters(), lr=0.1)", "", ""),
    ("SGD with momentum", "wf.optim.SGD(lin.parameters(), lr=0.1, momentum=0.9)", "", ""),
    ("Adam", "wf.optim.Adam(lin.parameters(), lr=0.1)", "", ""),
    ("AdamW", "wf.optim.AdamW(lin.parameters(), lr=0.1)", "", ""),
    ("RMSprop", "wf.optim.RMSprop(lin.parameters(), lr=0.1)", "", ""),
    ("clip", "wf.optim.SGD(lin.parameters(), lr=0.1)", "nn.utils.clip_grad_norm_(lin.parameters(), 0.1)\n", ""),
    ("clip, logged", "wf.optim.SGD(lin.parameters(), lr=0.1)",
     "log.append(nn.utils.clip_grad_norm_(lin.parameters(), 0.1).item())\n", ""),
    ("scheduler", "wf.optim.SGD(lin.parameters(), lr=0.1)\nsched = wf.optim.lr_scheduler.StepLR(opt, 2, 0.1)", "",
     "sched.step()\nlog.append(sched.get_last_lr())\n"),
    ("lr by hand", "wf.optim.SGD(lin.parameters(), lr=0.1)", "opt.param_groups[0]['lr'] *= 0.5\n", ""),
    ("predict after", "wf.optim.SGD(lin.parameters(), lr=0.1)", "", "log.append(lin(x).detach())\n"),
]:  # fmt: skip
    case(f"step, {name}", LIN + f"opt = {opt}", STEP.format(before=before, after=after), "lin, log", without="no_grad")
case("step every second", LIN + "opt = wf.optim.SGD(lin.parameters(), lr=0.1)",
     "loss = lin(x).tanh().sum()\nloss.backward()\nif i % 2:\n    opt.step()\n    opt.zero_grad()\nreturn loss.item()",
     "lin", without="no_grad")  # fmt: skip
case("step when the loss is bad", LIN + "opt = wf.optim.SGD(lin.parameters(), lr=0.1)",
     "loss = lin(x).tanh().sum()\nif loss.item() > 0:\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
     "return loss.detach()", "lin", without="no_grad")  # fmt: skip
case("step by hand", LIN, "loss = (lin(x) ** 2).sum()\nlin.zero_grad()\nloss.backward()\nwith wf.no_grad():\n"
     "    for p in lin.parameters():\n        p -= 0.1 * p.grad\nreturn loss.detach()", "lin",
     without="no_grad")  # fmt: skip
case("zero_grad only", LIN, "lin.zero_grad()\nreturn lin(x)", "lin")
case("grad accumulated, then mean", LIN, "(lin(x).sum() / 4).backward()\nreturn None", "lin", without="no_grad")
case("grads of each kept", LIN, "lin.zero_grad()\nlin(x).sum().backward()\n"
     "return [p.grad.clone() for p in lin.parameters()]",
     "lin", without="no_grad")  # fmt: skip

# Hooks: on tensors, on parameters and on modules.
for name, body, state in [
    ("tensor hook", "y = x * w\ny.register_hook(lambda g: log.append(g.clone()))\nreturn y * 2", ""),
    ("tensor hook replaces", "y = x * w\ny.register_hook(lambda g: g * 10)\nreturn y * 2", ""),
    ("tensor hook on the result", "y = x * w\ny.register_hook(lambda g: g * 10)\nreturn y", ""),
    ("tensor hook of one", "y = x * w\nif i == 2:\n    y.register_hook(lambda g: g * 0)\nreturn y * 2", ""),
    ("tensor hook removed", "y = x * w\nh = y.register_hook(lambda g: g * 10)\nh.remove()\nreturn y * 2", ""),
    ("hook on x", "x.register_hook(lambda g: g * 3)\nreturn x * w", ""),
    ("hook on w by one", "if i == 2:\n    w.register_hook(lambda g: g * 3)\nreturn x * w", ""),
    ("hook on w by each", "w.register_hook(lambda g: log.append(i))\nreturn x * w", ""),
    ("post accumulate hook", "if i == 0:\n"
     "    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))\n"
     "return x * w", ""),
    ("post accumulate hook, backward inside", "if i == 0:\n    w.register_post_accumulate_grad_hook(lambda p: "
     "log.append(p.grad.clone()))\n(x * w).sum().backward()\nreturn None", ""),
    ("retain_grad", "y = x * w\ny.retain_grad()\nlog.append(y)\nreturn y * 2", ""),
    ("retain_grad of the result", "y = x * w\ny.retain_grad()\nreturn y", ""),
    ("retain_grad and backward inside", "y = x * w\ny.retain_grad()\n(y * y).sum().backward()\nreturn y.grad", ""),
    ("forward hook counts", "", "lin.register_forward_hook(lambda m, a, o: log.append(1))"),
    ("forward hook keeps", "", "lin.register_forward_hook(lambda m, a, o: log.append(o))"),
    ("forward hook keeps values", "", "lin.register_forward_hook(lambda m, a, o: log.append(o.sum().item()))"),
    ("forward hook keeps inputs", "", "lin.register_forward_hook(lambda m, a, o: log.append(a[0]))"),
    ("forward hook replaces", "", "lin.register_forward_hook(lambda m, a, o: o * 2)"),
    ("forward hook replaces by value", "", "lin.register_forward_hook(lambda m, a, o: o * 2 if o.sum() > 0 else None)"),
    ("forward pre hook", "", "lin.register_forward_pre_hook(lambda m, a: (a[0] * 2,))"),
    ("forward pre hook counts", "", "lin.register_forward_pre_hook(lambda m, a: log.append(len(a)))"),
    ("full backward hook", "", "lin.register_full_backward_hook(lambda m, gi, go: log.append(go[0].sum().item()))"),
    ("full backward hook replaces", "", "lin.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))"),
    ("full backward pre hook", "", "lin.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))"),
    ("forward hook added by one", "if i == 2:\n    lin.register_forward_hook(lambda m, a, o: o * 2)\nreturn lin(x)",
     ""),
    ("forward hook added and removed", "h = lin.register_forward_hook(lambda m, a, o: log.append(i))\ny = lin(x)\n"
     "h.remove()\n"
     "return y", ""),
    ("forward hook added, look, removed", "h = lin.register_forward_hook(lambda m, a, o: log.append(i))\ny = lin(x)\n"
     "y.sum().item()\nh.remove()\nreturn y", ""),
    ("forward hook that sets a buffer", "", "lin.register_buffer('seen', wf.tensor(0))\n"
     "lin.register_forward_hook(lambda m, a, o: m.seen.add_(1) and None)"),
    ("hook in a sequence", "return seq(x)", "seq = nn.Sequential(lin, nn.Tanh())\n"
     "seq[1].register_forward_hook(lambda m, a, o: log.append(o))"),
    ("hook on a cell", "return cell(x)", "cell = mod(nn.GRUCell(3, 2))\n"
     "cell.register_forward_hook(lambda m, a, o: log.append(o))"),
    ("hook on a parameter's data", "return lin(x)", "lin.weight.register_hook(lambda g: log.append(g.sum().item()))"),
]:  # fmt: skip
    case("hooks, " + name, "w = weight(3)\n" + LIN + state, body or "return lin(x) * 2", "w, lin, log")
