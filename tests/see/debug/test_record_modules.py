"""Modules in a recording: their calls as a tree, their names, and what an error inside one leaves behind."""

import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.see.debug.documents import consistent
from wayfare import nn


class Block(nn.Module):
    """A layer used three times."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).relu()


class Stack(nn.Module):
    """Layers in a list, one of them shared."""

    def __init__(self):
        super().__init__()
        block = Block()
        self.layers = nn.ModuleList([block, block, Block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_calls_of_modules_are_a_tree():
    net = Stack()
    with wf.debug.record() as run:
        net(wf.ones(1, 4)).sum()
    document = consistent(run)
    strings, modules = document["strings"], document["modules"]
    named = [(strings[path], strings[kind]) for path, kind, _ in modules]
    calls = [(*named[module], parent, number) for module, parent, number in document["calls"]]
    assert calls == [
        ("", "Stack", -1, 0),
        ("layers.0", "Block", 0, 0), ("layers.0.inner", "Linear", 1, 0),
        ("layers.0", "Block", 0, 1), ("layers.0.inner", "Linear", 3, 1),
        ("layers.2", "Block", 0, 0), ("layers.2.inner", "Linear", 5, 0),
    ]  # fmt: skip
    by_path = {strings[path]: (strings[kind], parent) for path, kind, parent in modules}
    assert by_path["layers"][0] == "ModuleList"
    assert modules[by_path["layers.2.inner"][1]][0] == strings.index("layers.2")
    assert [(value.op, value.module) for value in run.nodes if not value.is_leaf] == [
        ("linear", "layers.0.inner"), ("relu", "layers.0"), ("linear", "layers.0.inner"), ("relu", "layers.0"),
        ("linear", "layers.2.inner"), ("relu", "layers.2"), ("sum", ""),
    ]  # fmt: skip
    names = {value.name for value in run.nodes if value.op == "leaf"}
    assert names == {"layers.0.inner.weight", "layers.0.inner.bias", "layers.2.inner.weight", "layers.2.inner.bias"}


def test_several_models_are_told_apart_by_name():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    with wf.debug.record() as run:
        second(first(wf.ones(1, 2)))
    assert {v.name for v in run.nodes if v.op == "leaf"} == {
        "Linear.weight", "Linear.bias", "Linear#2.weight", "Linear#2.bias",
    }  # fmt: skip
    with wf.debug.record(module={"one": first, "two": second}) as run:
        F.linear(first(wf.ones(1, 2)), second.weight)
    assert {v.name for v in run.nodes if v.op == "leaf"} == {"one.weight", "one.bias", "two.weight"}


def test_an_error_in_a_module_leaves_the_stack_in_order():
    net = Block()
    with wf.debug.record() as run:
        with pytest.raises(wf.errors.ShapeError):
            net(wf.ones(1, 3))
        wf.ones(2) * 1
    consistent(run)
    assert run.nodes[-1].module == ""
