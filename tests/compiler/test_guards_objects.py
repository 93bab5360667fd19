"""Guards: objects, classes, Python modules and nn.Modules, watched as far as the code can see them."""

import dataclasses
import enum
import sys
import types

import pytest

import wayfare as wf
from tests.compiler.guarding import changes, guarded, namespace
from wayfare import nn

scale = 2.0
shift = 1

# -- objects and classes


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


@dataclasses.dataclass
class Inner:
    k: float = 1.0


@dataclasses.dataclass
class Config:
    inner: Inner = dataclasses.field(default_factory=Inner)
    steps: int = 3


class Base:
    rate = 2

    def times(self, x):
        return x * self.rate

    @property
    def twice(self):
        return self.rate * 2

    @staticmethod
    def plain(x):
        return x


class Derived(Base):
    def times(self, x):
        return super().times(x) + 1


class Callable:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k


class Colour(enum.Enum):
    RED = 1
    BLUE = 2

    def value_of(self, x):
        return x * scale


def test_attributes_of_objects():
    config = Config()

    def f(x):
        return x * config.inner.k

    guards = guarded(f)
    config.steps = 100  # nobody reads it
    assert guards.holds()
    config.inner.k = 2.0
    changes(guards, "`config.inner.k` was 1.0 and is 2.0")
    config.inner = Inner()
    assert guards.holds(), guards.why()


def test_all_attributes_matter_where_names_are_computed():
    config = Config()

    def f(x, which):
        return x * getattr(config, which)

    guards = guarded(f)
    config.steps = 100
    changes(guards, "`config.steps`")


def test_a_written_attribute_matters_too():
    config = Config()

    def f(x):
        config.steps = x
        return config.steps

    guards = guarded(f)
    f(4)
    assert "config.steps" in guards.changed_by_call()


def test_slots():
    thing = Slotted(1)
    guards = guarded(lambda x: x * thing.k)
    thing.k = 2
    changes(guards, "`thing.k` was 1 and is 2")


def test_an_attribute_that_hides_the_one_of_the_class():
    thing = Base()
    guards = guarded(lambda x: x * thing.rate)
    thing.rate = 3
    changes(guards, "thing.rate")


def test_an_attribute_of_a_class(monkeypatch):
    guards = guarded(lambda x: x * Base.rate)
    monkeypatch.setattr(Base, "rate", 3)
    changes(guards, "`Base.rate` was 2 and is 3")


@pytest.mark.parametrize(
    "use",
    [lambda thing, x: thing.times(x), lambda thing, x: thing.twice, lambda thing, x: Derived().times(x)],
)
def test_methods_and_properties_are_followed(use, monkeypatch):
    thing = Derived()

    def f(x):
        return use(thing, x)

    guards = guarded(f)
    monkeypatch.setattr(Base, "rate", 3)
    changes(guards, "`Base.rate`")


def test_a_method_that_is_replaced(monkeypatch):
    thing = Derived()
    guards = guarded(lambda x: thing.times(x))
    monkeypatch.setattr(Base, "times", lambda self, x: x)
    changes(guards, "times")


def test_a_method_that_appears_in_a_class_between(monkeypatch):
    thing = Derived()
    guards = guarded(lambda x: thing.plain(x))
    monkeypatch.setattr(Derived, "plain", staticmethod(lambda x: x + 1), raising=False)
    changes(guards)


def test_an_object_that_becomes_of_another_class():
    thing = Base()
    guards = guarded(lambda x: thing.times(x))
    thing.__class__ = Derived
    changes(guards)


def test_a_callable_object():
    thing = Callable(2)
    guards = guarded(lambda x: thing(x))
    thing.k = 3
    changes(guards, "`thing.k`")


def test_methods_of_enumerations(monkeypatch):
    guards = guarded(lambda x: Colour.RED.value_of(x))
    monkeypatch.setattr(sys.modules[__name__], "scale", 7.0)
    changes(guards, "`scale`")


def test_the_object_of_a_method():
    thing = Base()
    thing.rate = 5
    guards = guarded(thing.times)
    thing.rate = 6
    changes(guards, "`self.rate` was 5 and is 6")


def test_objects_handed_in():
    config = Config()
    guards = guarded(lambda c, x: x * c.steps, config)
    config.steps = 4
    changes(guards, "self.steps")


def test_a_user_module():
    module = types.ModuleType("settings_of_user")
    module.__file__ = "settings_of_user.py"
    module.rate, module.other = 1, 2
    guards = guarded(namespace(source="def f(x): return x * settings.rate", settings=module)[0])
    module.other = 3
    assert guards.holds()
    module.rate = 2
    changes(guards, "`settings.rate` was 1 and is 2")


# -- modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Dropout(0.5)])
        self.options = {"power": 2}
        self.scale = 2.0
        self.steps = 0

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x ** self.options["power"] * self.scale


MODULE_CHANGES = {
    "eval": (lambda net: net.eval(), "`net` is in evaluation mode now"),
    "layer in eval": (lambda net: net.layers[1].eval(), "`net.layers[1]` is in evaluation mode now"),
    "attribute": (lambda net: setattr(net, "scale", 3.0), "`net.scale` was 2.0 and is 3.0"),
    "attribute of a layer": (lambda net: setattr(net.layers[1], "p", 0.1), "`net.layers[1].p` was 0.5 and is 0.1"),
    "in a dictionary of it": (lambda net: net.options.update(power=3), "`net.options['power']` was 2 and is 3"),
    "parameter": (lambda net: setattr(net.layers[0], "weight", nn.Parameter(wf.ones(3, 3))), "net.layers[0].weight"),
    "grown": (lambda net: net.layers.append(nn.ReLU()), "`net.layers` went from 2 to 3 entries"),
    "replaced layer": (lambda net: net.layers.__setitem__(0, nn.Linear(3, 3)), "net.layers[0]"),
    "hook": (lambda net: net.register_forward_hook(print), "forward hooks of `net` went from 0 to 1 entries"),
    "own forward": (lambda net: setattr(net, "forward", lambda x: x), "net.forward"),
    "deleted": (lambda net: delattr(net, "options"), "net.options"),
    "new class": (lambda net: setattr(net, "__class__", nn.ReLU), "net"),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_a_change_of_a_module(name):
    change, words = MODULE_CHANGES[name]
    net = Net()
    guards = guarded(lambda x: net(x))
    change(net)
    changes(guards, words)


def test_an_attribute_that_no_code_names_may_change():
    net = Net()
    guards = guarded(lambda x: net(x))
    net.steps += 1
    net.entirely_new = 1
    assert guards.holds(), guards.why()
    net.scale = 5.0
    changes(guards, "net.scale")


def test_changes_elsewhere_and_undone_hold():
    net, other = Net(), Net()
    guards = guarded(lambda x: net(x))
    other.eval()
    other.layers.append(nn.ReLU())
    assert guards.holds()
    net.eval()
    net.train()
    handle = net.register_forward_hook(print)
    handle.remove()
    assert guards.holds(), guards.why()


def test_what_a_hook_sees():
    net = Net()
    factor = [2]
    net.register_forward_hook(lambda module, args, out: out * factor[0])
    guards = guarded(lambda x: net(x))
    factor[0] = 3
    changes(guards, "`factor[0]` was 2 and is 3")


def test_hooks_of_parameters_and_what_they_see():
    net = Net()
    weight = net.layers[0].weight
    guards = guarded(lambda x: net(x))
    handle = weight.register_hook(lambda g: g * factor[0])
    factor = [2]
    changes(guards, "hooks of `net.layers[0].weight` went from 0 to 1 entries")
    handle.remove()
    assert guards.holds(), guards.why()
    weight.register_hook(lambda g: g * factor[0])
    guards = guarded(lambda x: net(x))
    factor[0] = 3
    changes(guards, "`factor[0]` was 2 and is 3")


def test_what_the_library_calls_of_a_class():
    factor = [2]

    class Twice(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * factor[0]

    guards = guarded(lambda x: Twice.apply(x))
    factor[0] = 3
    changes(guards, "`factor[0]`")


def test_a_method_of_a_module_class_that_is_replaced(monkeypatch):
    net = Net()
    guards = guarded(net)
    monkeypatch.setattr(Net, "forward", lambda self, x: x)
    changes(guards, "forward")


def test_a_change_behind_the_back_of_a_module_is_seen():
    net = Net()
    guards = guarded(lambda x: net(x))
    for change in (lambda: net.__dict__.update(scale=9.0), lambda: object.__setattr__(net, "scale", 8.0)):
        change()
        changes(guards, "net.scale")
        guards = guarded(lambda x: net(x))


def test_the_number_of_tests_grows_with_what_can_change():
    """Attributes are compared one by one: a number that stands for all of them could be passed by."""
    small = guarded(nn.Sequential(nn.Linear(2, 2)))
    large = guarded(nn.Sequential(*[nn.Linear(2, 2) for _ in range(200)]))
    assert small.count < 24 and large.count < 200 * 9
