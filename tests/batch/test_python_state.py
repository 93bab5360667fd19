"""Examples that change Python objects which others see: whatever the objects are, a map is the loop."""

import enum
import functools
import itertools
import os
import subprocess
import sys
import types

import pytest

import wayfare as wf
from tests.batch.states import same_as_loop
from wayfare import nn

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


# -- attributes


@case
def of_a_class():
    class Stats:
        n = 0

    def f(x):
        Stats.n += 1
        i, v = Stats.n, x.sum().item()
        Stats.n += 1
        return i, v, Stats.n

    return f


@case
def a_list_of_a_class():
    class Stats:
        hist: list = []  # noqa: RUF012

    def f(x):
        Stats.hist.append(0)
        v = x.sum().item()
        Stats.hist.append(v)
        return len(Stats.hist)

    return f, lambda: Stats.hist


@case
def of_the_class_of_an_object_made_inside():
    class Node:
        made = 0

        def __init__(self):
            self.__class__.made += 1
            self.number = type(self).made

    def f(x):
        a, v, b = Node(), x.sum().item(), Node()
        return a.number, v, b.number

    return f


@case
def a_counter_in_init():
    class Node:
        numbers = itertools.count()

        def __init__(self):
            self.number = next(Node.numbers)

    def f(x):
        return Node().number, x.sum().item(), Node().number

    return f


@case
def a_list_of_the_class_by_self():
    class Node:
        cache: dict = {}  # noqa: RUF012

        def keep(self, v):
            self.cache[len(self.cache)] = v

    def f(x):
        node = Node()
        node.keep(0)
        n, v = len(node.cache), x.sum().item()
        node.keep(v)
        return n

    return f, lambda: Node.cache


@case
def of_a_function():
    def f(x):
        f.n += 1
        i, v = f.n, x.sum().item()
        f.n += 1
        return i, v, f.n

    f.n = 0
    return f


@case
def of_a_module_object():
    config = types.ModuleType("config")
    config.n = 0

    def f(x):
        config.n += 1
        i = config.n
        return i, x.sum().item(), config.n

    return f


@case
def of_an_enum_member():
    class Color(enum.Enum):
        RED = 1

    Color.RED.n = 0

    def f(x):
        Color.RED.n += 1
        i = Color.RED.n
        return i, x.sum().item(), Color.RED.n

    return f


@case
def by_setattr():
    box = types.SimpleNamespace(n=0)

    def f(x):
        box.n, i = box.n + 1, box.n
        v = x.sum().item()
        setattr(box, "n", box.n + 1)  # noqa: B010
        return i, v, box.n

    return f


@case
def of_globals():
    globals()["_counted"] = 0

    def f(x):
        globals()["_counted"] += 1
        i = globals()["_counted"]
        return i, x.sum().item(), globals()["_counted"]

    return f


@case
def of_the_environment():
    os.environ["WAYFARE_TEST_COUNT"] = "0"

    def f(x):
        os.environ["WAYFARE_TEST_COUNT"] += "1"
        i = os.environ["WAYFARE_TEST_COUNT"]
        return i, x.sum().item(), os.environ["WAYFARE_TEST_COUNT"]

    return f


# -- methods of objects from outside


class Pool:
    """Counts by methods with names that say nothing."""

    made = 0

    def __init__(self):
        self.n = 0

    def take(self):
        self.n += 1
        return self.n

    def __call__(self):
        return self.take()

    @property
    def next(self):
        return self.take()

    @classmethod
    def of_class(cls):
        cls.made += 1
        return cls.made

    def __add__(self, other):
        return self.take() + other

    def __getitem__(self, key):
        return self.take()

    def __len__(self):
        return self.take()

    def __iter__(self):
        yield self.take()

    def __contains__(self, key):
        return self.take() % 2 == 0

    def __getattr__(self, name):
        self.__dict__["n"] += 1
        return self.n


class Deep:
    """Has something that counts inside."""

    def __init__(self):
        self.pool = Pool()
        self.by_name = {"take": self.pool.take}

    def log(self):
        return self.pool.take()


def counting(take):
    """Two counts around a value that is read."""

    def make():
        Pool.made = 0
        pool, deep = Pool(), Deep()

        def f(x):
            i = take(pool, deep)
            v = x.sum().item()
            return i, v, take(pool, deep)

        return f

    return make


for name, take in {
    "a_method": lambda p, d: p.take(), "a_call": lambda p, d: p(), "a_property": lambda p, d: p.next,
    "a_class_method": lambda p, d: Pool.of_class(), "a_class_method_of_an_object": lambda p, d: p.of_class(),
    "an_operator": lambda p, d: p + 1, "an_item": lambda p, d: p[0], "a_length": lambda p, d: len(p),
    "a_loop": lambda p, d: [*p], "in": lambda p, d: 1 in p, "any_attribute": lambda p, d: p.anything,
    "a_method_of_a_part": lambda p, d: d.pool.take(), "a_method_that_calls_another": lambda p, d: d.log(),
    "a_function_in_a_dict": lambda p, d: d.by_name["take"](), "a_bound_method": lambda p, d: (lambda t: t())(p.take),
    "by_getattr": lambda p, d: getattr(p, "take")(), "by_map": lambda p, d: list(map(lambda _: p.take(), [0])),  # noqa: B009
    "as_a_key": lambda p, d: sorted([1, 2], key=lambda _: p.take()),
    "a_partial": lambda p, d: functools.partial(p.take)(),
}.items():  # fmt: skip
    CASES[f"method_{name}"] = counting(take)


@case
def an_environment_of_all_episodes():
    class Env:
        def reset(self):
            self.at = 0.0
            return wf.tensor([self.at])

        def step(self, a):
            self.at += a
            return wf.tensor([self.at]), -abs(self.at - 3)

    env = Env()

    def episode(x):
        o, total = env.reset(), 0
        for _ in range(int(x[0].item()) + 1):
            o, r = env.step((o + 1).item())
            total += r
        return total

    return episode


@case
def a_call_of_an_object_made_inside():
    lines = []

    class Writer:
        def __call__(self, v):
            lines.append(v)
            return len(lines)

    def f(x):
        write = Writer()
        return write(0), x.sum().item(), write(1)

    return f, lambda: lines


@case
def a_descriptor_that_counts():
    lines = []

    class Counted:
        def __set__(self, owner, value):
            lines.append(value)

    class Box:
        value = Counted()

    def f(x):
        box = Box()
        box.value = 0
        n = len(lines)
        box.value = x.sum().item()
        return n, len(lines)

    return f, lambda: lines


@case
def a_logger_of_self():
    class Logger:
        def __init__(self):
            self.lines = []

        def log(self, line):
            self.lines += [line]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lg = Logger()

        def forward(self, x):
            self.lg.log("in")
            v = x.sum().item()
            self.lg.log(v)
            return v

    net = Net()
    return net, lambda: net.lg.lines


@case
def a_busy_flag():
    class Guard:
        busy = False

        def run(self, x):
            assert not self.busy
            self.busy = True
            v = x.sum().item()
            self.busy = False
            return v

    guard = Guard()
    return lambda x: guard.run(x)


# -- maps inside maps


@case
def nested_maps_that_count():
    state = types.SimpleNamespace(n=0)

    def inner(s):
        state.n += 1
        state.n += s.sum().item()
        return state.n

    def outer(x):
        a = state.n
        return a, wf.map(inner, [x, x * 2]), state.n

    return outer


@case
def nested_maps_that_append():
    lines = []

    def inner(s):
        lines.append(s.sum().item())

    def outer(x):
        lines.append("in")
        wf.map(inner, [x, x * 2])
        lines.append("out")

    return outer, lambda: lines


@case
def an_inner_map_that_only_computes():
    lines = []

    def outer(x):
        lines.append("in")
        found = wf.map(lambda s: s.sum().item(), [x, x * 2])
        lines.append(found)

    return outer, lambda: lines


@pytest.mark.parametrize("name", CASES)
def test_state_is_that_of_the_loop(name):
    same_as_loop(CASES[name])


@pytest.mark.parametrize("lock", ["Lock()", "Semaphore(1)", "BoundedSemaphore(1)", "Condition()"])
@pytest.mark.parametrize("call", ["s.total(x)", "s(x)", "by['total'](x)"])
def test_a_lock_around_a_value_that_is_read(lock, call):
    # In a process of its own: what is tested for is that it ends.
    program = f"""
import threading, wayfare as wf
class Store:
    def __init__(self): self.lock = threading.{lock}
    def total(self, x):
        with self.lock: return x.sum().item()
    __call__ = total
s = Store(); by = {{"total": s.total}}
print(wf.map(lambda x: {call}, [wf.ones(2)] * 3), wf.map(lambda x: {call}, [wf.ones(2)] * 3, batch=True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "[2.0, 2.0, 2.0] [2.0, 2.0, 2.0]", done.stderr
