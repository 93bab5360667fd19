"""Themes of random programs for `wf.compile`: statements of one kind, of which a program has many or none.

What is written as in `program_parts`: `{a}` and `{b}` are tensors that broadcast, `{l}` came from outside, `{t}` is a
tensor or a part of one, `{n}` and `{o}` are new names. What a theme changes between calls is in `program_changes`.
"""

# Tensors that share memory with others, under several names, at places that move.
ALIASES = (
    "slots[0].mul_(0.5).add_({a}.detach().mean())",
    "slots[k % 2].copy_(c0)",
    "{n} = {a} * slots[0].sum()",
    "{n} = slots[k % 2] * 2",
    "slots[0] = pool[k % 4]",
    "slots[0], slots[1] = slots[1], slots[0]",
    "pool[k % 4].copy_(c0)",
    "pool[k % 4].add_({a}.detach().mean())",
    "{n} = pool[k % 3 : k % 3 + 2]\n{n}.mul_(0.5)",
    "{n} = pool[1]\npool[1].add_(1)\n{o} = {n} * 2",
    "pool.data[0].mul_(0.9)",
    "{n} = pool.detach()\npool.mul_(0.8)\n{o} = {n}.sum() + {a}",
    "{l}.data.mul_(0.9)",
    "{l}.detach().add_(0.1)",
    "{n} = {l}.data\n{l}.detach().mul_(0.5)\n{o} = {n} + 1",
    "{n} = {b} * (2 if {l} is c0 else 3)",
    "{n} = {b} * (2 if {l} is c1 else 3)",
    "with wf.no_grad():\n    {l}.mul_(0.5)\n{n} = {a} * c0.sum()",
    "c0.add_(0.2)\n{n} = {l} * 2",
    "if c0.sum() > 1:\n    {l}.data.fill_(0.3)\n{n} = {b} + c0.mean()",
    "box.row = pool[k % 4]\nbox.row.add_(1)",
    "c1.data[0].copy_(c0)",
    "c2.add_(0.1)\n{n} = {b} * c2.sum()",
    "{n} = [row.mul_(0.5) for row in pool[:2]][0]",
    "x0.data.copy_(x0.data.flip(0))",
)

HOOKS = (
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: heard.append(float(g.sum())))",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: g * 3)\n{o} = {n}.sin()",
    "if {a}.requires_grad:\n    handle = {a}.register_hook(lambda g: g * 2)\n"
    "    ({a} * {a}).sum().backward(retain_graph=True)\n    handle.remove()",
    "if {l}.requires_grad:\n    ({l} * {l}).sum().backward()",
    "(c1 * c1).sum().backward()",
    "(c1 * {a}.detach().mean()).sum().backward()",
    "{n} = c3.detach().requires_grad_()\n"
    "{n}.register_post_accumulate_grad_hook(lambda p: heard.append(float(p.sum())))\n"
    "({n} * {n}).sum().backward()",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.retain_grad()",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(lambda g: g * k)",
    "if c3.requires_grad and not handles:\n    handles.append(c3.register_hook(lambda g: g * 2))",
    "if handles:\n    handles.pop().remove()",
)

ERRORS = (
    "if {a}.sum() > 0.3:\n    raise ValueError('too large')",
    "if k > 2:\n    raise KeyError(k)",
    "c0.add_(0.1)\nif {a}.mean() > 0.1:\n    raise RuntimeError('after a write')",
    "log.append(k)\nif {a}.mean() > 0.1:\n    raise OSError('after an append')",
    "{n} = {a}[int({b}.abs().sum() * 2)]",
    "{n} = {a}[k]",
    "{n} = {a}[wf.tensor([k])]",
    "{n} = {a}[wf.tensor([0, int({b}.abs().max() * 2)])]",
    "try:\n    {n} = {a}[int({b}.abs().sum() * 2)]\nexcept IndexError:\n    {n} = {a} * 3",
    "try:\n    {n} = {a}[wf.tensor([int({b}.abs().max() * 2)])]\nexcept IndexError as error:\n    {n} = {a} * 3\n"
    "    log.append(type(error).__name__)",
    "try:\n    c0.add_(1)\n    {n} = {a} @ wf.ones(97)\nexcept RuntimeError:\n    {n} = {b} * 3\n"
    "finally:\n    c0.mul_(0.5)",
    "try:\n    if {a}.sum() > 0:\n        raise ValueError('found')\n    {n} = {b} * 2\nexcept ValueError as error:\n"
    "    {n} = {b}\n    log.append(str(error))",
    "{n} = {a}.reshape(k, -1)",
    "{n} = {a} + wf.ones(k)",
    "try:\n    {n} = {a} + wf.ones(k)\nexcept RuntimeError:\n    {n} = {a} - 1",
    "assert {a}.max() < 1.2, 'large'",
    "{n} = {a}.gather(0, wf.full({a}.shape, k, dtype=wf.int64))",
    "{n} = {b} * (1 / (k - 3))",
    "{n} = F.embedding(wf.tensor([k - 1]), c1)",
    "{n} = F.embedding(wf.tensor([int({a}.abs().max() * 2)]), c1)",
    "{n} = {b} * {a}.item()",
    "{n} = wf.linalg.cholesky({a} @ {a}.mT - 0.5)",
    "{n} = {a} * 1\nif {n}.requires_grad:\n    {n}.register_hook(complaining)",
    "{n} = {b} * settings['missing' if k > 2 else 'scale']",
    "{n} = {a}.item() if k > 2 else {a}",
    "try:\n    {n} = softer({a}, {b}) * (1 / (k - 3))\nexcept ZeroDivisionError:\n    {n} = {b}",
    "try:\n    pool.mul_(0.5)\n    {n} = F.embedding(wf.tensor([k - 1]), c1)\nexcept IndexError:\n    {n} = {b} + 1",
    "x0.data.mul_(0.9)\n{n} = {a}[wf.tensor([int(x0.detach().abs().sum())])]",
)

NUMPY = (
    "{n} = {b} * float({a}.detach().numpy().sum())",
    "{n} = wf.from_numpy({a}.detach().numpy()) * 2",
    "{a}.detach().numpy()[...] *= 0.9",
    "{l}.detach().numpy()[...] += 0.1\n{n} = {b} * {l}.detach().sum()",
    "view = {a}.detach().numpy()\n{t}.mul_(0.5)\n{n} = {b} * float(view.sum())",
    "{n} = {a} * 2\nview = {n}.detach().numpy()\n{n}.data.mul_(0.5)\n{o} = {b} + float(view.sum())",
    "{n} = {b} * float(array[0, 0])",
    "{n} = {b} + wf.from_numpy(array).sum()",
    "{n} = {b} + wf.tensor(array).mean()",
    "array[0] *= 0.9",
    "array[0, 0] = float({a}.detach().sum())",
    "{n} = {b} * c2.sum()",
    "c2.mul_(0.9)\n{n} = {b} * float(array.sum())",
    "{n} = {b} * (2 if array.max() > 1 else 3)",
    "views.append({a}.detach().numpy())",
    "views.append(c0.numpy())",
    "{n} = {b} * float(views[-1].sum()) if views else {b}",
    "{n} = np.tanh({a}.detach().numpy())\n{n} = wf.from_numpy(np.asarray({n}))",
    "{n} = {a}.detach().numpy().copy()\nlog.append({n})",
    "c0.numpy()[0] = 0.3\n{n} = {b} * c0.sum()",
)

ATTRIBUTES = (
    "{n} = keeper.note({a})",
    "keeper.last = {a}",
    "keeper.last = {a}.detach()",
    "{n} = {a} if keeper.last is None else {a} + keeper.last.detach().mean()",
    "keeper.count += 1\n{n} = {b} * (keeper.count % 3)",
    "keeper.count += 1",
    "{n} = {b} * keeper.scaled",
    "{n} = {b} * getattr(keeper, 'scale', 1.0)",
    "setattr(keeper, 'count', k)",
    "if hasattr(keeper, 'extra'):\n    del keeper.extra\nelse:\n    keeper.extra = k",
    "{n} = {b} * (2 if hasattr(keeper, 'extra') else 3)",
    "type(keeper).factor = type(keeper).factor * 0.9",
    "{n} = {b} * keeper.__dict__['scale']",
    "{n} = {b} * vars(keeper).get('scale', 2.0)",
    "{n} = {b} * len(keeper.__dict__)",
    "keeper.__dict__.update(scale=0.9)",
    "keeper.items.append({a}.detach().sum())",
    "{n} = {b} + sum(keeper.items[-2:])",
    "if len(keeper.items) > 2:\n    keeper.items.pop(0)",
    "keeper.inner['h'] = {a}.detach()",
    "{n} = {b} + keeper.inner['h'].mean() if 'h' in keeper.inner else {b}",
    "keeper.inner.update(count=keeper.count)",
    "program.steps = getattr(program, 'steps', 0) + 1",
    "{n} = {b} * getattr(program, 'steps', 1)",
    "program.cache = {a}.detach()",
    "{n} = {b} if getattr(program, 'cache', None) is None else {b} + program.cache.mean()",
    "settings.setdefault('seen', []).append(k)",
    "log.insert(0, k)",
    "del log[:-3]",
    "{n} = {b} * sum(v for v in log if isinstance(v, int))",
    "box.total += 1\n{n} = {b} * box.total",
    "{n} = keeper({a})",
    "keeper[k] = {a}.detach().mean()",
    "{n} = {b} * len(keeper)",
    "box.kept = keeper",
    "match keeper:\n    case Keeper(count=0):\n        {n} = {b} * 2\n    case _:\n        {n} = {b} * 3",
    "{n} = {b} * len(str(keeper))",
    "{n} = {b} * operator.attrgetter('scale')(keeper)",
)

UNUSED = (
    "{n} = c1 * 2\n{o} = c3 * 3",
    "{n} = c1.sin()\n{o} = {a} + c3.sum()",
    "{n} = {a} * c1.mean()\n{o} = c3.square()",
    "{n} = {a} * 1\n{o} = {n}.detach() * c3.sum()",
    "if {a}.requires_grad and {l}.requires_grad:\n    g = wf.autograd.grad({a}.sum(), [{l}, c3], allow_unused=True, "
    "retain_graph=True)\n    log.append([t is None for t in g])\n"
    "    {n} = {b} * 2 if g[1] is None else {b} + g[1].sum()\n"
    "else:\n    {n} = {a}",
    "c1.grad = c3.grad = None\n(c1 * {a}.detach().mean()).sum().backward()\nouter.step()",
    "outer.zero_grad()\n({a}.detach().mean() * c3).sum().backward()\nouter.step()",
    "{n}, {o} = SumAndProduct.apply({a}, {b})",
    "{n}, {o} = {a}.sort(-1)",
    "{n} = {a} * 2\n{o} = {n}.sum() * 0",
    "{n} = wf.where(wf.zeros({a}.shape) > 0, {a}, 0.5)",
    "{n}, {o} = (c1 * 2).chunk(2, 0)",
)

OPTIMISERS = (
    "outer.step()",
    "outer.zero_grad()",
    "outer.zero_grad(set_to_none=False)",
    "c1.grad = None",
    "c1.grad = c1.detach() * 2",
    "if c1.grad is None:\n    c1.grad = wf.ones_like(c1)\nelse:\n    c1.grad = c1.grad * 0.5",
    "if c1.grad is not None:\n    c1.grad.mul_(0.5)",
    "c3.grad = c1.grad[0] if c1.grad is not None else None",
    "outer.param_groups[0]['lr'] *= 0.9",
    "outer.param_groups[0]['lr'] = 0.01 * k",
    "(c1.sin() + c3).sum().backward()\nouter.step()",
    "((c1 * c3).sum() + {a}.detach().mean() * c1.sum()).backward()",
    "{n} = {b} * float(outer.state[c1].get('step', 1) if c1 in outer.state else 2)",
    "{n} = {b} * len(outer.state)",
    "{n} = {b} * (c1.grad.sum() if c1.grad is not None else 2)",
    "{n} = {b} * (3 if c3.grad is None else 2)",
    "c1.requires_grad_(False)\n{n} = c1 * 2\nc1.requires_grad_(True)",
    "held_grad = c1.grad\n(c1 * 2).sum().backward()\n{n} = {b} * (2 if held_grad is c1.grad else 3)",
    "c1.grad, c1.data = None, c1.data * 0.9",
)

NUMBERS = (
    "{n} = {b} * r", "{n} = {b} + k * 0.1", "{n} = {b} * (1 - r) + r", "{n} = {b} * r ** 2 - k", "{n} = k - {b} / r",
    "if r > 0.5:\n    {n} = {b} * 2\nelse:\n    {n} = {b}.sin()",
    "{n} = {b} if k % 2 else {b}.cos()", "{n} = {a}[k % len({a})]", "{n} = {a}[:k]", "{n} = {b}.clamp(-r, r)",
    "{n} = {a}\nfor i in range(k % 4):\n    {n} = {n} * r + i", "{n} = {b} * math.cos(r)", "settings['r'] = r",
    "log.append(r)", "log.append(k)", "box.total = box.total * 0.9 + r", "{n} = {b} * min(r, 0.7) + max(k, 3)",
    "{n} = F.dropout({a}, r / (1 + r), True)", "outer.param_groups[0]['lr'] = r * 0.01", "{n} = {b} * int(r * 10)",
    "{n} = {b} * (k // 2) / (k % 3 + 1)", "{n} = wf.full_like({a}, r) + {b}", "{t}.mul_(r)", "{t}.fill_(k)",
    "{n} = {b} + wf.tensor([r, k]).sum()", "{n} = {b} * float(f'{{r:.1f}}')", "{n} = {b} * [1, 2, 3][k % 3]",
    "{n} = ({a}.abs() + 0.1).pow(r)", "{n} = {a}.lerp({b}.to({a}.dtype), r)", "{n} = {b} * (r if {a}.sum() > k else k)",
    "{n} = {a}.roll(k, 0)", "{n} = wf.arange(k).sum() * {b}", "{n} = {b} * round(r, 1) + (r > 0.3)",
    "{n} = {b} * -r + abs(-k)",
    "{n} = {b} * (1 if 0.2 < r < 0.6 else 2)", "c0.mul_(1 - r).add_({a}.detach().mean(), alpha=r)",
    "{n} = {b} * (not k % 3)",
    "{n} = {b} * {{2: 1.5, 3: 0.5}}.get(k, r)", "{t}[...] = r", "{n} = {a} * (r == 0.2 or k)",
    "{n} = wf.where({a} > r, {a}, k)", "{n} = ({a} > r).sum() * {b}", "{n} = {a}.unsqueeze(k % 2)",
)  # fmt: skip

SECOND = (
    "if {a}.requires_grad:\n    {a}.square().sum().backward(create_graph=True)",
    "if {a}.requires_grad:\n    g, = wf.autograd.grad({a}.sin().sum(), c1, create_graph=True, allow_unused=True)\n"
    "    {n} = {b} if g is None else g.square().sum() + {b}\nelse:\n    {n} = {a}",
    "g, = wf.autograd.grad((c1 ** 3).sum() * {a}.detach().mean(), c1, create_graph=True)\n{n} = g * c1",
    "g, = wf.autograd.grad((c1.sin() * c3).sum(), c1, create_graph=True)\n"
    "{n}, = wf.autograd.grad(g.square().sum(), c3)",
    "(c1.sin() * c1).sum().backward(create_graph=True)\n{n} = c1.grad.square().sum()\nc1.grad = None",
    "g, = wf.autograd.grad((c1 ** 3).sum(), c1, create_graph=True)\n(g * {a}.detach().mean()).sum().backward()",
    "if {l}.requires_grad:\n    g, = wf.autograd.grad(({l} ** 3).sum(), {l}, create_graph=True)\n"
    "    {n} = g.sum() + {b}\n"
    "else:\n    {n} = {b}",
)

# Only where there is a model.
MODEL = (
    "net[1].weight.grad = None",
    "net.zero_grad()",
    "net[1].bias.grad = c3.grad",
    "if net[1].weight.grad is not None:\n    net[1].weight.grad = net[1].weight.grad * 0.5",
    "net({a}.detach().to(c0.dtype).reshape(-1, 3)).square().mean().backward()\nopt.step()\nopt.zero_grad()",
    "net[1](c1).square().sum().backward()",
    "opt.step()",
    "opt.param_groups[0]['lr'] *= 0.9",
    "{n} = {b} + net[3].last.detach().mean() if net[3].last is not None else {b}",
    "{n} = {b} * net[3].calls",
    "net[3].last = {a}.detach()",
    "net.extra = k",
    "{n} = {b} * getattr(net, 'extra', 1)",
    "{n} = {b} * float(opt.state[net[1].weight]['step']) if opt.state[net[1].weight].get('step') else {b}",
    "{n} = net(c1.detach())\n{n}.sum().backward()\nif {n}.mean() > 0.1:\n    raise ValueError('before the step')\n"
    "opt.step()",
    "opt.step()\nsched.step()\nif {a}.sum() > 0.3:\n    raise StopIteration",
    "net(c1.detach()).sum().backward()\n{n} = {b} * (2 if net[1].bias.grad is None else 3)",
    "{n} = net[1](c1)\nnet[3].best = {n}.detach().max()",
    "opt.step(lambda: net(c1.detach()).square().sum())",
    "{n} = {b} * net[1].__dict__.get('gain', 1.0)",
    "{n} = net[3](c1) * 2",
)

THEMES = {
    "aliases": ALIASES, "hooks": HOOKS, "errors": ERRORS, "numpy": NUMPY, "attributes": ATTRIBUTES, "unused": UNUSED,
    "optimisers": OPTIMISERS, "numbers": NUMBERS, "second": SECOND, "results": (),
}  # fmt: skip
