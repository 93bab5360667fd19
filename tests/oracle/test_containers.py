"""Containers side by side: what counts as an entry, order and names, what operators do."""

from __future__ import annotations

from collections import OrderedDict

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.module_parts import affine, numbers
from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


def crowded(m, container):
    """A container that has a buffer, a buffer that is not saved and a parameter beside its entries."""
    container.register_buffer("mean", numbers(m, 2))
    container.register_buffer("scratch", numbers(m, 1), persistent=False)
    container.register_parameter("gain", m.nn.Parameter(numbers(m, 3)))
    container.register_parameter("nothing", None)
    container.note = "plain"
    return container


def state(container):
    return list(container.state_dict()), [n for n, _ in container.named_parameters()], [
        n for n, _ in container.named_buffers()], [n for n, _ in container.named_children()]  # fmt: skip


@case
def sequential_beside_a_buffer(m):
    net = crowded(m, m.nn.Sequential(affine(m), affine(m, 3, 2)))
    return len(net), len(list(net)), net(numbers(m, 4, 3)), state(net), net[-1].bias, net[1:](numbers(m, 4, 3))


@case
def a_buffer_before_the_modules(m):
    net = m.nn.Sequential()
    net.register_buffer("first", numbers(m, 2))
    net.append(affine(m))
    net.insert(0, affine(m, 3, 3, 2.0))
    return len(net), state(net), net[0].weight, net[1].weight


@case
def sequential_changed_beside_a_buffer(m):
    net = crowded(m, m.nn.Sequential(*[affine(m, 3, 3, float(i)) for i in range(5)]))
    del net[1]
    net.insert(2, affine(m, 3, 3, 9.0))
    net[0] = affine(m, 3, 3, 8.0)
    gone = net.pop(-1)
    del net[1:3]
    net.extend([affine(m, 3, 3, 7.0)])
    return gone.weight, len(net), state(net), net.mean, net.gain, net.note, [layer.weight for layer in net]


@case
def list_beside_a_parameter(m):
    net = crowded(m, m.nn.ModuleList([affine(m, 3, 3, float(i)) for i in range(4)]))
    del net[1]
    net.insert(1, affine(m, 3, 3, 9.0))
    net.append(affine(m, 3, 3, 8.0))
    net.pop(0)
    net += [affine(m, 3, 3, 7.0)]
    return len(net), state(net), [layer.weight for layer in net], len(net[1:]), net.mean, len(net + [affine(m)])


@case
def text_of_a_list_with_a_buffer(m):
    return repr(crowded(m, m.nn.ModuleList([affine(m), affine(m)]))), repr(crowded(m, m.nn.Sequential(affine(m))))


@case
def dict_beside_a_buffer(m):
    net = crowded(m, m.nn.ModuleDict({"a": affine(m), "b": affine(m, 3, 2)}))
    net["c"] = affine(m)
    del net["a"]
    return (len(net), list(net), list(net.keys()), [k for k, _ in net.items()], "mean" in net, "gain" in net,
            "c" in net, state(net), [v.weight for v in net.values()])  # fmt: skip


@case
def a_buffer_is_no_key(m):
    return crowded(m, m.nn.ModuleDict({"a": affine(m)}))["mean"]


@case
def a_buffer_cannot_be_deleted_as_a_key(m):
    del crowded(m, m.nn.ModuleDict({"a": affine(m)}))["mean"]


@case
def a_cleared_dict_keeps_its_buffers(m):
    net = crowded(m, m.nn.ModuleDict({"a": affine(m)}))
    net.clear()
    return len(net), state(net), net.mean


@case
def an_empty_place_counts(m):
    net = m.nn.ModuleList([affine(m), None, affine(m)])
    return len(net), [layer is None for layer in net], state(net)


@case
def parameter_list_beside_others(m):
    held = m.nn.ParameterList([numbers(m, 2), numbers(m, 3)])
    held.register_buffer("mean", numbers(m, 2))
    held.gain = m.nn.Parameter(numbers(m, 1))
    held.inner = affine(m)
    held.append(numbers(m, 4))
    return len(held), [p.shape for p in held], state(held), held[-1], len(held[1:])


@case
def parameter_dict_beside_others(m):
    held = m.nn.ParameterDict({"a": numbers(m, 2)})
    held.register_buffer("mean", numbers(m, 2))
    held.gain = m.nn.Parameter(numbers(m, 1))
    held["c"] = numbers(m, 4)
    return len(held), list(held), "mean" in held, "gain" in held, state(held), [v.shape for v in held.values()]


@case
def parameter_dict_order_of_a_plain_dict(m):
    held = m.nn.ParameterDict({"z": numbers(m, 2), "a": numbers(m, 1)})
    held.update({"y": numbers(m, 2), "b": numbers(m, 1)})
    return list(held), list(held.state_dict())


@case
def parameter_dict_order_of_pairs(m):
    held = m.nn.ParameterDict([("z", numbers(m, 2)), ("a", numbers(m, 1))])
    held.update(OrderedDict([("y", numbers(m, 2)), ("b", numbers(m, 1))]))
    held.update(m.nn.ParameterDict([("x", numbers(m, 2)), ("c", numbers(m, 1))]))
    return list(held), list(held.state_dict())


@case
def parameter_dict_as_a_dictionary(m):
    held = m.nn.ParameterDict([("z", numbers(m, 2)), ("a", numbers(m, 1))])
    other = held.copy()
    both = held | m.nn.ParameterDict([("b", numbers(m, 3))])
    held |= m.nn.ParameterDict([("d", numbers(m, 3))])
    return (list(reversed(held)), list(other), other["z"] is held["z"], list(both), list(held),
            list(held.fromkeys(["p", "q"], numbers(m, 2))), held.setdefault("e", numbers(m, 1)), held.get("none"),
            held.popitem()[0], held.pop("a"), list(held))  # fmt: skip


@case
def sequential_operators(m):
    net = m.nn.Sequential(affine(m), affine(m, 3, 3, 2.0))
    other = m.nn.Sequential(affine(m, 3, 3, 3.0))
    kept = net
    net += other
    twice, thrice = net * 2, 3 * other
    other *= 2
    return (kept is net, state(net), state(twice), len(thrice), thrice[0] is thrice[2], len(other),
            len(net + other), len(list(twice.parameters())))  # fmt: skip


@case
def sequential_and_a_list(m):
    return m.nn.Sequential(affine(m)) + [affine(m)]


@case
def sequential_times_zero(m):
    return m.nn.Sequential(affine(m)) * 0


@case
def sequential_times_a_float(m):
    return m.nn.Sequential(affine(m)) * 1.5


@case
def named_entries_after_a_deletion(m):
    net = m.nn.Sequential(OrderedDict([("a", affine(m)), ("b", affine(m)), ("c", affine(m))]))
    part = net[1:]
    del net[1]
    return state(net), state(part)


@case
def insert_gives_the_container_itself(m):
    net = m.nn.Sequential(affine(m))
    return net.insert(0, affine(m)) is net, m.nn.ModuleList([affine(m)]).insert(0, affine(m))


@case
def the_tables_of_a_module(m):
    net = crowded(m, m.nn.Sequential(affine(m), affine(m, 3, 2)))
    return list(net._modules), list(net._parameters), list(net._buffers), [
        type(v).__name__ for v in net._modules.values()], "0" in net._modules, net._modules["0"].weight  # fmt: skip


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_containers_agree(snippet):
    agree(snippet)
