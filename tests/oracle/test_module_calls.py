"""Calls of modules side by side: hooks, containers, parameters, and calls with other parameters."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.module_parts import affine, nested, numbers
from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


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
