"""Compiled modules and methods: modules to all who look, compiled to those who call."""

import copy
import pickle

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def make():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2).double()
        self.scale = 2.0

    def forward(self, x):
        return self.inner(x) * self.scale

    @wf.compile
    def half(self, x):
        return self.inner(x) * self.scale / 2


def test_it_is_a_module_with_the_keys_of_its_module():
    model = make()
    compiled = wf.compile(model)
    assert isinstance(compiled, nn.Module) and compiled._orig_mod is model
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert len(compiled) == 3 and compiled[0] is model[0] and list(compiled) == list(model) and bool(compiled)
    assert repr(model) in repr(compiled) and "state_dict" in dir(compiled)


def test_calls_are_replayed_and_right():
    model = make()
    compiled = wf.compile(model)
    for call in range(5):
        x = numbers(3, 4, seed=call)
        equal(compiled(x), model(x))
        compiled(x).sum().backward()
        got, model[0].weight.grad = model[0].weight.grad, None
        model(x).sum().backward()
        equal(got, model[0].weight.grad)
        model.zero_grad()
    assert compiled.explain().data["replayed"] == 9


def test_what_is_set_is_set_on_the_module():
    model = Scaled()
    compiled = wf.compile(model)
    x = numbers(3, 4)
    for scale in (2.0, 2.0, 2.0, 5.0, 5.0, 5.0):
        compiled.scale = scale
        equal(compiled(x), model.inner(x) * scale)
    compiled.eval()
    assert model.inner.training is False and compiled.training is False
    compiled.extra = 3
    assert model.extra == 3
    del compiled.extra
    assert not hasattr(model, "extra") and not hasattr(compiled, "extra")
    compiled.float()
    assert model.inner.weight.dtype is wf.float32 and compiled(x.float()).dtype is wf.float32


def test_a_state_goes_from_plain_to_compiled_and_back():
    model, other = make(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    compiled = wf.compile(other)
    x = numbers(3, 4)
    for _ in range(3):
        compiled(x)
    compiled.load_state_dict(model.state_dict())
    equal(compiled(x), model(x))
    make().load_state_dict(compiled.state_dict())


def test_inside_another_module():
    model = make()
    compiled = wf.compile(model)
    outer = nn.Sequential(compiled, nn.Linear(2, 1).double())
    assert list(outer.state_dict())[:2] == ["0.0.weight", "0.0.bias"]
    assert len(list(outer.parameters())) == 6
    outer.eval()
    assert model.training is False and model[0].training is False
    whole = wf.compile(outer)
    for call in range(4):
        x = numbers(3, 4, seed=call)
        equal(whole(x), outer[1](model(x)))
        equal(outer(x), outer[1](model(x)))
    assert compiled.explain().data["replayed"] > 0


def test_a_compiled_module_that_changes_inside_a_compiled_function():
    compiled = wf.compile(Scaled())

    @wf.compile
    def f(x):
        return compiled(x)

    x = numbers(3, 4)
    for scale in (2.0, 2.0, 2.0, 5.0, 5.0, 5.0):
        compiled.scale = scale
        equal(f(x), compiled.inner(x) * scale)


def test_hooks_run_and_new_ones_are_noticed():
    compiled = wf.compile(make())
    x = numbers(3, 4)
    plain = compiled._orig_mod(x)
    for _ in range(3):
        equal(compiled(x), plain)
    handle = compiled.register_forward_hook(lambda module, args, out: out * 2)
    for _ in range(3):
        equal(compiled(x), plain * 2)
    handle.remove()
    for _ in range(3):
        equal(compiled(x), plain)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_compiled_and_apart(way):
    compiled = wf.compile(make())
    x = numbers(3, 4)
    twin = way(compiled)
    assert type(twin) is type(compiled) and twin[0].weight is not compiled[0].weight
    for _ in range(3):
        equal(twin(x), compiled(x))
    assert twin.explain().data["replayed"] == 2


def test_training_a_compiled_module():
    models = [make(), wf.compile(make())]
    optimizers = [wf.optim.Adam(m.parameters(), lr=0.1) for m in models]
    for call in range(6):
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = model(numbers(3, 4, seed=call)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        equal(losses[1], losses[0])
    equal(dict(models[1].state_dict()), dict(models[0].state_dict()))


def test_a_compiled_method_of_a_module_guards_its_object():
    one, two = Scaled(), Scaled()
    x = numbers(3, 4)
    for scale in (2.0, 2.0, 2.0, 5.0, 5.0, 5.0):
        one.scale = scale
        for model in (one, two):
            equal(model.half(x), model.inner(x) * model.scale / 2)
    assert Scaled.half.explain().data["replayed"] >= 6


class Plain:
    """No module: any object with a compiled method."""

    def __init__(self, weight):
        self.weight = weight
        self.settings = {"scale": 2.0}

    @wf.compile
    def run(self, x, times=1):
        return x * self.weight * self.settings["scale"] * times

    @staticmethod
    @wf.compile
    def twice(x):
        return x * 2

    @wf.compile
    @staticmethod
    def thrice(x):
        return x * 3

    @classmethod
    @wf.compile
    def of_class(cls, x):
        return x * cls.factor

    factor = 7.0


def test_a_compiled_method_of_any_object_guards_it():
    one, two = Plain(numbers(4)), Plain(numbers(4, seed=1))
    x = numbers(4, seed=2)
    for scale in (2.0, 2.0, 2.0, 5.0, 5.0, 5.0):
        one.settings["scale"] = scale
        equal(one.run(x), x * one.weight * scale)
        equal(two.run(x, times=3), x * two.weight * 2.0 * 3)
    one.weight = numbers(4, seed=9)
    for _ in range(3):
        equal(one.run(x), x * one.weight * 5.0)
        equal(Plain.twice(x), x * 2)
        equal(one.thrice(x), x * 3)
        equal(one.of_class(x), x * 7)
    told = Plain.run.explain().data
    assert told["plain"] == 0 and told["replayed"] >= 8
    assert "`self.settings['scale']` was 2.0 and is 5.0" in told["retraces"]


def test_a_class_attribute_is_guarded():
    x = numbers(4)
    for factor in (7.0, 7.0, 7.0, 8.0, 8.0):
        Plain.factor = factor
        equal(Plain.of_class(x), x * factor)


def test_a_method_that_is_compiled_afterwards():
    class Late:
        def run(self, x):
            return x * self.factor

    Late.run = wf.compile(Late.run)
    late = Late()
    for factor in (2.0, 2.0, 2.0, 3.0, 3.0):
        late.factor = factor
        equal(late.run(numbers(2)), numbers(2) * factor)
    assert Late.run.explain().data["replayed"] == 3


def test_options_of_pytorch_are_taken():
    f = wf.compile(lambda x: x * 2, mode="reduce-overhead", backend="inductor", dynamic=True, options={"a": 1})
    assert f(wf.ones(1)).item() == 2
    model = make()
    assert wf.compile(model, mode="max-autotune")._orig_mod is model
    assert wf.compile(model, disable=True) is model


def test_compiling_twice_is_compiling_once():
    model = make()
    compiled = wf.compile(wf.compile(model))
    assert compiled._orig_mod is model
    f = wf.compile(wf.compile(lambda x: x * 2))
    for _ in range(3):
        assert f(wf.ones(1)).item() == 2
    assert f.explain().data["replayed"] == 2


def test_a_class_is_refused():
    with pytest.raises(TypeError, match="Scaled is a class"):
        wf.compile(Scaled)
