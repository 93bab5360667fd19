"""nn.Module and its containers side by side: registering, walking, states, hooks, modes, text."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


def numbers(m, *shape, start=1.0):
    count = 1
    for size in shape:
        count *= size
    return (m.arange(count, dtype=m.float64) / count + start).reshape(shape)


def affine(m, inside=3, outside=3, start=1.0):
    class Affine(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = m.nn.Parameter(numbers(m, outside, inside, start=start))
            self.bias = m.nn.Parameter(numbers(m, outside))
            self.register_buffer("scale", m.ones(1, dtype=m.float64))
            self.register_buffer("scratch", m.zeros(2), persistent=False)

        def forward(self, x, shift=0.0):
            return (x @ self.weight.t() + self.bias) * self.scale + shift

        def extra_repr(self):
            return f"{inside}, {outside}"

    return Affine()


def nested(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = affine(m)
            self.blocks = m.nn.ModuleList([affine(m) for _ in range(3)])
            self.named = m.nn.ModuleDict({"left": affine(m), "right": affine(m, 3, 2)})
            self.again = self.first
            self.free = m.nn.Parameter(m.ones(2))
            self.empty = None
            self.register_parameter("nothing", None)
            self.register_module("gone", None)

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.named["right"](x)

    return Net()


@case
def names_and_order(m):
    net = nested(m)
    return (
        [n for n, _ in net.named_parameters()], [n for n, _ in net.named_parameters(recurse=False)],
        [n for n, _ in net.named_parameters(prefix="p", remove_duplicate=False)],
        [n for n, _ in net.named_buffers()], [n for n, _ in net.named_modules()], [n for n, _ in net.named_children()],
        [n for n, _ in net.named_modules(remove_duplicate=False)], list(net.state_dict()), len(list(net.modules())),
        list(net.state_dict(prefix="model.")),
    )  # fmt: skip


@case
def text(m):
    return repr(nested(m)).replace(" x Affine", " x Affine")


@case
def text_of_containers(m):
    return [repr(c) for c in (
        m.nn.Sequential(), m.nn.ModuleList(), m.nn.ModuleDict(), m.nn.Sequential(affine(m), affine(m, 3, 1)),
        m.nn.ModuleList([affine(m), affine(m), affine(m, 3, 1), affine(m)]), m.nn.ModuleDict({"a": affine(m)}),
    )]  # fmt: skip


@case
def a_parameter_is_replaced_in_its_place(m):
    net = affine(m)
    net.weight = m.nn.Parameter(m.zeros(3, 3, dtype=m.float64))
    net.bias = None
    return list(net.state_dict()), net.weight, net.bias


@case
def a_parameter_cannot_become_a_tensor(m):
    affine(m).weight = m.zeros(3, 3)


@case
def a_module_cannot_become_a_number(m):
    nested(m).first = 3


@case
def a_buffer_takes_any_tensor(m):
    net = affine(m)
    net.scale = m.ones(4)
    return list(net.state_dict()), net.scale


@case
def a_buffer_takes_no_number(m):
    affine(m).scale = 3


@case
def a_tensor_is_no_parameter(m):
    affine(m).register_parameter("other", m.zeros(3))


@case
def a_name_with_a_dot(m):
    affine(m).register_parameter("a.b", m.nn.Parameter(m.zeros(1)))


@case
def an_empty_name(m):
    affine(m).add_module("", affine(m))


@case
def a_name_that_is_taken(m):
    affine(m).register_buffer("forward", m.zeros(1))


@case
def a_buffer_under_a_parameters_name(m):
    affine(m).register_buffer("weight", m.zeros(1))


@case
def without_super_init(m):
    class Net(m.nn.Module):
        def __init__(self):
            self.layer = affine(m)

    Net()


@case
def deleting(m):
    net = nested(m)
    del net.first
    del net.free
    return list(net.state_dict()), hasattr(net, "first")


@case
def a_name_changes_its_kind(m):
    net = nested(m)
    net.first = m.nn.Parameter(m.ones(1))
    return list(net.state_dict())


@case
def a_parameter_cannot_become_a_module(m):
    nested(m).free = affine(m)


@case
def gradients_through_a_model(m):
    net = nested(m)
    x = numbers(m, 2, 3).requires_grad_()
    net(x).sum().backward()
    return [(n, p.grad) for n, p in net.named_parameters()], x.grad


@case
def freezing(m):
    net = nested(m)
    net.blocks.requires_grad_(False)
    net(numbers(m, 2, 3)).sum().backward()
    return [(n, p.requires_grad, p.grad is None) for n, p in net.named_parameters()]


@case
def zero_grad(m):
    net = affine(m)
    net(numbers(m, 2, 3)).sum().backward()
    net.zero_grad(set_to_none=False)
    first = net.weight.grad
    net.zero_grad()
    return first, net.weight.grad


@case
def modes(m):
    net = nested(m)
    net.eval()
    net.blocks[1].train()
    return [(n, module.training) for n, module in net.named_modules()]


@case
def a_mode_is_a_bool(m):
    nested(m).train("yes")


@case
def apply_goes_children_first(m):
    order = []
    nested(m).apply(lambda module: order.append(type(module).__name__))
    return order


@case
def conversion(m):
    net = nested(m)
    before = net.first.weight
    net(numbers(m, 2, 3)).sum().backward()
    net.float()
    return net.first.weight is before, before.dtype is m.float32, before.grad.dtype is m.float32, before


@case
def conversion_to_integers(m):
    nested(m).to(m.int64)


@case
def loading(m):
    net, other = nested(m), nested(m)
    with m.no_grad():
        for p in other.parameters():
            p.mul_(3)
    answer = net.load_state_dict(other.state_dict())
    return list(net.parameters()), str(answer), answer.missing_keys


@case
def loading_less(m):
    net = nested(m)
    state = net.state_dict()
    del state["first.weight"]
    state["other"] = m.ones(1)
    answer = net.load_state_dict(state, strict=False)
    return answer.missing_keys, answer.unexpected_keys


@case
def loading_less_strictly(m):
    net = nested(m)
    state = net.state_dict()
    del state["first.weight"]
    net.load_state_dict(state)


@case
def loading_another_shape(m):
    affine(m).load_state_dict(affine(m, 4, 3).state_dict(), strict=False)


@case
def loading_another_dtype(m):
    net = affine(m)
    net.load_state_dict({k: v.float() for k, v in affine(m, start=3.0).state_dict().items()})
    return net.weight


@case
def loading_by_assignment(m):
    net = affine(m)
    net.weight.requires_grad_(False)
    given = affine(m, start=3.0).state_dict()
    net.load_state_dict(given, assign=True)
    return net.weight, net.weight.requires_grad, isinstance(net.weight, m.nn.Parameter), net.scale is given["scale"]


@case
def loading_no_dictionary(m):
    affine(m).load_state_dict([1])


@case
def state_shares_memory(m):
    net = affine(m)
    net.state_dict()["weight"].zero_()
    return net.weight, net.state_dict()["weight"].requires_grad, net.state_dict(keep_vars=True)["weight"] is net.weight


@case
def extra_state(m):
    class Net(m.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 1

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    a, b = m.nn.Sequential(Net()), m.nn.Sequential(Net())
    a[0].count = 5
    b.load_state_dict(a.state_dict())
    return b[0].count, list(a.state_dict())


@case
def deep_copy(m):
    net = nested(m)
    other = copy.deepcopy(net)
    with m.no_grad():
        other.first.weight.zero_()
    return net.first.weight, other.again is other.first, other.blocks[0].weight, isinstance(
        other.free, m.nn.Parameter
    )


@case
def forward_hooks(m):
    net, log = affine(m), []
    net.register_forward_pre_hook(lambda module, args: log.append("pre") or (args[0] * 2,))
    net.register_forward_pre_hook(lambda module, args: log.append("first"), prepend=True)
    net.register_forward_hook(lambda module, args, out: log.append("post") or out + 1)
    handle = net.register_forward_hook(lambda module, args, out: log.append("never"))
    handle.remove()
    net.register_forward_hook(
        lambda module, args, kwargs, out: log.append(sorted(kwargs)), with_kwargs=True, prepend=True
    )
    return net(numbers(m, 2, 3), shift=2.0), log


@case
def pre_hook_with_kwargs(m):
    net = affine(m)
    net.register_forward_pre_hook(lambda module, args, kwargs: (args, {"shift": 5.0}), with_kwargs=True)
    return net(numbers(m, 2, 3), shift=1.0)


@case
def hook_after_an_error(m):
    net, log = affine(m), []
    net.register_forward_hook(lambda module, args, out: log.append(out), always_call=True)
    try:
        net(numbers(m, 2, 4))
    except RuntimeError:
        log.append("error")
    return log


@case
def backward_hooks(m):
    net, seen = affine(m), []
    net.register_full_backward_hook(lambda module, gi, go: seen.append((gi[0], go[0])))
    net.register_full_backward_pre_hook(lambda module, go: (go[0] * 2,))
    x = numbers(m, 2, 3).requires_grad_()
    net(x * 1).sum().backward()
    return seen, x.grad, net.weight.grad


@case
def a_backward_hook_replaces(m):
    net = affine(m)
    net.register_full_backward_hook(lambda module, gi, go: (gi[0] * 10,))
    x = numbers(m, 2, 3).requires_grad_()
    net(x * 1).sum().backward()
    return x.grad, net.weight.grad


@case
def a_backward_hook_without_input_gradients(m):
    net, seen = affine(m), []
    net.register_full_backward_hook(lambda module, gi, go: seen.append((gi, go)))
    net(numbers(m, 2, 3)).sum().backward()
    return seen


@case
def backward_hooks_of_two_inputs_and_outputs(m):
    class Two(m.nn.Module):
        def forward(self, a, b):
            return a * b, a + b

    net, seen = Two(), []
    net.register_full_backward_hook(lambda module, gi, go: seen.append((gi, go)))
    a, b = numbers(m, 3).requires_grad_(), numbers(m, 3).requires_grad_()
    first, second = net(a, b)
    (first.sum() + second.sum() * 2).backward()
    return seen, a.grad


@case
def sequential(m):
    net = m.nn.Sequential(affine(m), affine(m, 3, 2))
    net.append(affine(m, 2, 4))
    net.insert(1, affine(m))
    names = [n for n, _ in net.named_children()]
    del net[0]
    return (
        names, [n for n, _ in net.named_children()], net(numbers(m, 2, 3)), len(net), len(net[1:]),
        [n for n, _ in net[1:].named_children()], net[-1](numbers(m, 1, 2)),
    )  # fmt: skip


@case
def sequential_by_name(m):
    net = m.nn.Sequential(OrderedDict([("hidden", affine(m)), ("out", affine(m, 3, 1))]))
    net[0] = affine(m, start=2.0)
    return list(net.state_dict()), net(numbers(m, 2, 3)), net.hidden.weight


@case
def sequential_out_of_range(m):
    m.nn.Sequential(affine(m))[1]


@case
def a_list_grows_and_shrinks(m):
    modules = m.nn.ModuleList([affine(m)])
    modules.append(affine(m, 3, 2)).extend([affine(m), affine(m, 3, 4)])
    modules.insert(0, affine(m, 1, 1))
    modules += [affine(m)]
    del modules[1]
    modules[0] = affine(m, 2, 2)
    taken = modules.pop(1)
    return list(modules.state_dict()), len(modules), repr(taken), [repr(x) for x in modules], len(modules[1:])


@case
def a_list_of_numbers(m):
    m.nn.ModuleList([3])


@case
def a_list_is_not_called(m):
    m.nn.ModuleList([affine(m)])(1)


@case
def a_dictionary(m):
    modules = m.nn.ModuleDict([["b", affine(m)], ["a", affine(m, 3, 1)]])
    modules["c"] = affine(m)
    modules.update({"d": affine(m)})
    taken = modules.pop("b")
    del modules["d"]
    return list(modules), "a" in modules, len(modules), [k for k, _ in modules.items()], repr(taken), list(
        modules.state_dict()
    )


@case
def a_dictionary_without_the_key(m):
    m.nn.ModuleDict()["x"]


@case
def parameter_lists(m):
    ps = m.nn.ParameterList([m.nn.Parameter(m.ones(2)), m.zeros(3)])
    ps.append(m.ones(1)).extend([m.ones(4)])
    ps[0] = m.nn.Parameter(m.zeros(5))
    return list(ps.state_dict()), len(ps), [p.shape for p in ps], [p.requires_grad for p in ps], len(ps[1:])


@case
def parameter_dicts(m):
    ps = m.nn.ParameterDict({"b": m.nn.Parameter(m.ones(2)), "a": m.zeros(3)})
    ps["c"] = m.nn.Parameter(m.ones(1))
    ps.update({"d": m.ones(2)})
    ps.pop("a")
    return sorted(ps.state_dict()), len(ps), sorted(ps.keys()), "c" in ps, ps["d"].requires_grad


@case
def paths(m):
    net = nested(m)
    net.set_submodule("blocks.1", affine(m, 7, 7))
    return (
        repr(net.get_submodule("blocks.1")), net.get_parameter("named.left.bias"), net.get_buffer("first.scale"),
        net.get_submodule("") is net,
    )  # fmt: skip


@case
def a_path_to_nowhere(m):
    nested(m).get_submodule("blocks.9")


@case
def parameters_are_tensors(m):
    p = m.nn.Parameter(m.ones(2))
    q = m.nn.Parameter(m.ones(2), requires_grad=False)
    return (
        isinstance(p, m.Tensor), isinstance(p, m.nn.Parameter), isinstance(m.ones(1), m.nn.Parameter), repr(p), repr(q),
        isinstance(p * 1, m.nn.Parameter), isinstance(p.detach(), m.nn.Parameter), p.is_leaf, q.requires_grad,
        isinstance(copy.deepcopy(p), m.nn.Parameter),
    )  # fmt: skip


@case
def a_parameter_shares_memory(m):
    x = m.zeros(2)
    p = m.nn.Parameter(x)
    x += 1
    return p


@case
def a_parameter_of_integers(m):
    m.nn.Parameter(m.ones(2, dtype=m.int64))


@case
def calling_with_other_parameters(m):
    net = m.nn.Sequential(affine(m), affine(m, 3, 2))
    net[1].bias = m.nn.Parameter(net[0].bias[:2].detach())
    others = {name: p.detach() * 2 for name, p in net.named_parameters()}
    out = m.func.functional_call(net, others, (numbers(m, 2, 3),))
    return out, net[0].weight, net[1].weight


@case
def the_gradient_of_a_functional_call(m):
    net = affine(m)
    others = {name: p.detach() for name, p in net.named_parameters()}
    return m.func.grad(lambda p: m.func.functional_call(net, p, numbers(m, 2, 3)).sum())(others)


@case
def a_functional_call_with_an_unknown_name(m):
    m.func.functional_call(affine(m), {"other": m.ones(1)}, numbers(m, 2, 3), strict=True)


@case
def an_ensemble(m):
    models = [copy.deepcopy(affine(m))]
    models += [copy.deepcopy(models[0]).apply(lambda net: net.weight.data.mul_(2)) for _ in range(2)]
    parameters, buffers = m.func.stack_module_state(models)
    call = lambda p, b, x: m.func.functional_call(models[0], (p, b), x)
    return m.func.vmap(call, (0, 0, None))(parameters, buffers, numbers(m, 2, 3)), sorted(parameters), sorted(buffers)


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_modules_agree(snippet):
    agree(snippet)
