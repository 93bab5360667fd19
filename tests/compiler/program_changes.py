"""What happens between the calls of a random program for `wf.compile`: statements run outside, in its world.

`{i}` is a small number. The same statement is run in every world; one that raises must raise in all of them.
"""

ALIASES = (
    "slots[0] = pool[{i}]", "slots[1] = slots[0]", "slots[0] = c0", "slots[0] = c1.data[0]", "slots.reverse()",
    "pool = pool.clone()", "pool.data = pool.data.clone()", "c0 = pool[{i}]", "c0 = c0.clone()", "pool.mul_(0.9)",
    "c2 = pool[{i} : {i} + 2]", "c0.data = pool.data[0]", "c2 = c1.detach()", "c1.data = pool.data[1:3]",
    "box.row = pool[{i}]", "c3.data = c1.data[0]", "slots.append(pool[0])", "c2 = c2.clone()",
    "c1.data = c1.data.clone()",
    "c0 = c2[0]", "c1.data.mul_(0.9)", "held_row = pool[{i}]; c0 = held_row",
)  # fmt: skip
HOOKS = (
    "handles.append(c1.register_hook(lambda g: g * 2))", "handles.append(c3.register_hook(lambda g: g * 0.5))",
    "handles.append(c1.register_hook(lambda g: heard.append(float(g.sum()))))",
    "handles.append(c1.register_post_accumulate_grad_hook(lambda p: heard.append(float(p.grad.sum()))))",
    "handles.append(c1.register_post_accumulate_grad_hook(halving))",
    "handles.append(c3.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None)))",
    "handles.pop().remove()", "handles.pop(0).remove()",
    "handles.append(kept[-1].register_hook(lambda g: heard.append(1)))",
    "for leaf in leaves_held(): handles.append(leaf.register_hook(lambda g: g * 2))",
    "for leaf in leaves_held(): handles.append(leaf.register_post_accumulate_grad_hook(halving))",
    "kept[-1].sum().backward()",
)  # fmt: skip
NUMPY = (
    "array += 0.5", "array[0] = 0.25", "c0.numpy()[0] = 0.3", "c1.detach().numpy()[...] *= 0.9", "array = array + 1",
    "c2 = wf.from_numpy(array[::-1].copy())", "pool.numpy()[0] = pool.numpy()[1]", "views.append(c0.numpy())",
    "c0 = wf.from_numpy(array[0])", "box.view = c0.numpy()", "array *= -1", "views[-1][...] = 0.4", "views.clear()",
    "c2 = wf.from_numpy(array)", "array = array.copy()", "kept[-1].detach().numpy()[...] = 0.5",
)  # fmt: skip
ATTRIBUTES = (
    "keeper.scale = 3.0", "keeper.__dict__['scale'] = 0.5", "vars(keeper)['scale'] = 0.7", "type(keeper).factor = 2.5",
    "keeper.factor = 1.5", "del keeper.factor", "setattr(keeper, 'count', 5)",
    "object.__setattr__(keeper, 'scale', 4.0)",
    "type(keeper).scaled = property(lambda self: self.scale * 3)", "program.steps = 7", "settings.update(scale=0.2)",
    "log.clear()", "log.append(3)", "log[:] = [1, 2]", "keeper.inner = {{'h': c0}}", "keeper.inner.clear()",
    "keeper.items.append(c0.mean())", "keeper.items = []", "keeper.last = None", "keeper.last = c1", "keeper.extra = 1",
    "del keeper.extra", "keeper.__dict__.update(extra=2, scale=0.8)", "keeper.note = lambda h: h * 5",
    "type(keeper).note = lambda self, h: h - self.scale", "program.cache = c0", "box.total = 0.5",
    "if hasattr(program, 'steps'): del program.steps",
    "keeper = type(keeper)()", "box.kept = None", "keeper.count += 2", "type(keeper).__call__ = lambda self, h: h * 7",
    "type(keeper).__len__ = lambda self: 4", "type(keeper).__str__ = lambda self: 'k' * 5", "settings['seen'] = [1]",
)  # fmt: skip
OPTIMISERS = (
    "outer.step()", "outer.zero_grad()", "outer.zero_grad(set_to_none=False)", "c1.grad = None", "c3.grad = None",
    "c1.grad = wf.ones_like(c1)", "c3.grad = wf.ones_like(c3)", "c1.grad = c1.detach()", "c1.grad.zero_()",
    "c3.grad = c1.grad[0]", "c1.grad = c1.grad.clone()", "c1.requires_grad_(False)", "c1.requires_grad_(True)",
    "c3.requires_grad_(not c3.requires_grad)", "outer.param_groups[0]['lr'] = 0.01", "outer.state.clear()",
    "outer.param_groups[0]['weight_decay'] = 0.5", "outer.load_state_dict(outer.state_dict())", "saved = c1.grad",
    "c1.grad = saved", "outer.param_groups[0]['params'].reverse()", "outer.step = counting(outer.step, heard)",
    "outer.param_groups[0]['params'].remove(c3)",
    "handles.append(outer.register_step_post_hook(lambda *_: heard.append(2)))",
)  # fmt: skip
RESULTS = (
    "kept[-1].mul_(2)", "kept[-1].data.add_(1)", "kept[0].zero_()", "kept[-1].detach().fill_(0.3)", "del kept[:-2]",
    "with wf.no_grad(): kept[-1].add_(1)", "kept[-1].sum().backward()", "kept.clear()", "c0 = kept[-1].detach()[:3]",
    "kept[-1].data = kept[-1].data.clone()", "kept[-1].requires_grad_(False)", "slots[0] = kept[-1]",
    "kept[-1][...] = 0.5", "keeper.last = kept[-1]", "kept[-1].grad = None", "kept[0].data.mul_(0.5)",
)  # fmt: skip
MODEL = (
    "opt.step()", "opt.zero_grad()", "opt.param_groups[0]['lr'] = 0.005", "opt.param_groups[0]['weight_decay'] = 0.1",
    "opt.state.clear()", "opt.load_state_dict(opt.state_dict())", "sched.step()",
    "net.load_state_dict(net.state_dict())",
    "net.eval()", "net.train()", "net[1].weight = wf.nn.Parameter(net[1].weight.detach() * 2)", "net[2].p = 0.5",
    "net[1].weight.grad = None", "net[1].weight.grad = wf.ones_like(net[1].weight)", "net[1].bias.grad = c3.grad",
    "c3.grad = net[1].bias.grad", "for p in net.parameters(): p.grad = None", "net[1].requires_grad_(False)",
    "net[1].requires_grad_(True)", "opt.step = counting(opt.step, heard)", "net[1].forward = doubled(net[1].forward)",
    "handles.append(net[1].register_forward_hook(lambda m, i, o: o * 2))", "net.extra = 2.0",
    "handles.append(net[1].register_forward_pre_hook(lambda m, i: (i[0] * 2,)))", "net[3].last = None",
    "handles.append(net.register_forward_hook(lambda m, i, o: heard.append(float(o.sum()))))",
    "handles.append(net[1].register_full_backward_hook(lambda m, i, o: heard.append(3)))",
    "handles.append(net[1].weight.register_hook(lambda g: g * 2))",
    "handles.append(net[1].weight.register_post_accumulate_grad_hook(halving))",
    "handles.append(opt.register_step_pre_hook(lambda *_: heard.append(4)))", "handles.pop().remove()",
    "net[1].__dict__['gain'] = 3.0", "net[1].__dict__.update(gain=2.0)", "object.__setattr__(net[1], 'gain', 4.0)",
    "net[3].calls = 0", "net[1].weight.data = net[1].weight.data.clone()", "c1.data = net[1].weight.data[:2]",
    "net[1].bias.data = pool.data[{i}]", "net.__dict__.update(extra=5)", "vars(net[3])['calls'] = 7",
    "net[1].weight.data.mul_(0.9)", "opt.param_groups[0]['params'].pop()", "net[0].running_mean.zero_()",
)  # fmt: skip

CHANGES = {
    "aliases": ALIASES, "hooks": HOOKS, "errors": RESULTS, "numpy": NUMPY, "attributes": ATTRIBUTES,
    "unused": OPTIMISERS, "optimisers": OPTIMISERS, "numbers": (), "second": OPTIMISERS, "results": RESULTS,
    "model": MODEL,
}  # fmt: skip
