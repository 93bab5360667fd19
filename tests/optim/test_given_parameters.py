"""What an optimiser takes for parameters: any iterable of them, also a ParameterList, and groups with iterables."""

import itertools
from collections import OrderedDict

import pytest

import wayfare as wf
from wayfare import nn, optim

OPTIMISERS = [optim.SGD, optim.Adam, optim.LBFGS, optim.RMSprop]


def parameter(*values):
    return nn.Parameter(wf.tensor(values or (1.0, 2.0)))


def two():
    return [parameter(1.0), parameter(2.0, 3.0)]


ITERABLES = {
    "list": list, "tuple": tuple, "generator": lambda ps: (p for p in ps), "map": lambda ps: map(lambda p: p, ps),
    "filter": lambda ps: filter(lambda p: p.requires_grad, ps), "chain": itertools.chain,
    "values of a dict": lambda ps: OrderedDict(enumerate(ps)).values(), "ParameterList": nn.ParameterList,
    "values of a ParameterDict": lambda ps: nn.ParameterDict(zip("ab", ps, strict=True)).values(),
    "parameters of a ParameterList": lambda ps: nn.ParameterList(ps).parameters(),
}  # fmt: skip


@pytest.mark.parametrize("make", OPTIMISERS)
@pytest.mark.parametrize("given", ITERABLES.values(), ids=list(ITERABLES))
def test_any_iterable_of_parameters(make, given):
    parameters = two()
    group = make(given(parameters), lr=0.1).param_groups[0]
    assert all(a is b for a, b in zip(group["params"], parameters, strict=True))


@pytest.mark.parametrize("given", ITERABLES.values(), ids=list(ITERABLES))
def test_groups_with_any_iterable(given):
    first, second = two(), two()
    groups = optim.Adam(({"params": given(ps), "lr": lr} for ps, lr in ((first, 0.1), (second, 0.2)))).param_groups
    assert [[id(p) for p in group["params"]] for group in groups] == [[id(p) for p in ps] for ps in (first, second)]
    assert [group["lr"] for group in groups] == [0.1, 0.2]


def test_a_parameter_list_is_stepped():
    held = nn.ParameterList(two())
    opt = optim.SGD(held, lr=0.5)
    sum((p * p).sum() for p in held).backward()
    opt.step()
    assert [p.tolist() for p in held] == [[0.0], [0.0, 0.0]]


@pytest.mark.parametrize(("given", "error", "words"), [
    (lambda: nn.ParameterList(), ValueError, "empty list of parameters"),
    (lambda: nn.ParameterList([parameter(), 3]), TypeError, "one of the parameters is a int"),
    (lambda: nn.ParameterDict({"a": parameter()}), TypeError, r"not a ParameterDict.*model.parameters\(\)"),
    (lambda: [{"params": nn.ParameterDict({"a": parameter()})}], TypeError, r"not a ParameterDict"),
    (lambda: [{"params": nn.Linear(2, 2)}], TypeError, r"takes parameters, not a Linear.*model.parameters\(\)"),
    (lambda: [{"params": nn.Sequential(nn.Linear(2, 2))}], TypeError, "takes parameters, not a Sequential"),
    (lambda: [{"params": None}], TypeError, "an iterable of parameters, not a NoneType"),
    (lambda: nn.ModuleList([nn.Linear(2, 2)]), TypeError, "takes parameters, not a ModuleList"),
])  # fmt: skip
def test_what_gives_no_parameters_is_named(given, error, words):
    with pytest.raises(error, match=words):
        optim.Adam(given())
