"""Never stale: what comes with the call (arguments, modes, random state, dtype, thread) changes from call to call."""

import threading

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers, x_of
from tests.compiler.worlds import stay_equal
from wayfare import nn
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def calls(f, arguments, gradient=True, python=False):
    """A world whose calls go round through lists of arguments; a change moves to the next list."""

    def make(way):
        compiled = way(f)
        place = [0]

        def call(number):
            args, options = arguments[place[0]](number)
            live = [t for t in [*args, *options.values()] if isinstance(t, wf.Tensor) and t.requires_grad]
            out = compiled(*args, **options)
            if gradient and out.requires_grad:
                out.sum().backward()
            return [out.detach(), out.requires_grad, [t.grad for t in live]]

        def on():
            place[0] += 1

        return call, *[on] * (len(arguments) - 1)

    stay_equal(make, python)


def given(*args, **options):
    return lambda number: ([a(number) if callable(a) else a for a in args], options)


def test_python_arguments():
    def f(x, k):
        return x * k if k else x + 1

    calls(f, [given(x_of, k) for k in (2.0, 3.0, 2, True, False, 0, 1, 1.0, None, 2.0)])


def test_strings_tuples_and_dictionaries_as_arguments():
    def f(x, how):
        if how == "sum" or how == ("sum",):
            return x.sum()
        return x * how["k"] if isinstance(how, dict) else x.mean() * len(how)

    calls(f, [given(x_of, how) for how in ("sum", "mean", ("sum",), ("sum", 1), {"k": 2.0}, {"k": 3.0}, [1, 2], [1])])


def test_keyword_positional_and_default_mean_the_same():
    def f(x, k=2.0, *, m=1.0):
        return x * k + m

    calls(f, [given(x_of), given(x_of, 3.0), lambda n: ([x_of(n)], {"k": 3.0}), lambda n: ([x_of(n)], {"m": 4.0}),
              lambda n: ([x_of(n)], {"m": 4.0, "k": 3.0}), lambda n: ([x_of(n)], {"k": 3.0, "m": 4.0}),
              lambda n: ([], {"x": x_of(n)})])  # fmt: skip


def test_the_order_of_keywords():
    def f(**given):
        first = next(iter(given))
        return sum(t.sum() for t in given.values()) * (2 if first == "a" else 3)

    one, two = x_of(1), x_of(2)
    calls(f, [lambda n: ([], {"a": one, "b": two}), lambda n: ([], {"b": two, "a": one}), lambda n: ([], {"a": one})])


def test_the_order_of_a_dictionary():
    def f(table):
        return next(iter(table.values())) * 2

    one, two = numbers(2), numbers(3)
    calls(f, [given({"a": one, "b": two}), given({"b": two, "a": one})])


def test_shapes_dtypes_and_strides():
    def f(x):
        return (x * 2).sum(0) / x.shape[0] if x.ndim > 1 else x + x.element_size()

    def of(make):
        return lambda number: ([make(number)], {})

    calls(f, [
        of(lambda n: numbers(3, 4, seed=n)), of(lambda n: numbers(5, 4, seed=n)), of(lambda n: numbers(4, seed=n)),
        of(lambda n: numbers(3, 4, seed=n).float()), of(lambda n: numbers(4, 3, seed=n).T),
        of(lambda n: numbers(1, 4, seed=n).expand(3, 4)), of(lambda n: numbers(0, 4, seed=n)),
        of(lambda n: numbers(6, 4, seed=n)[::2]), of(lambda n: wf.arange(12).reshape(3, 4)),
        of(lambda n: numbers(3, 4, seed=n)), of(lambda n: numbers(2, 3, 4, seed=n)),
    ])  # fmt: skip


def test_flags_of_arguments():
    def f(x, w):
        return (x @ w).tanh() * (2 if x.requires_grad else 1) * (3 if x.is_leaf else 1)

    calls(f, [lambda n, a=a, b=b: ([numbers(3, 4, seed=n, grad=a), numbers(4, 2, seed=n, grad=b)], {})
              for a in (False, True) for b in (True, False)])  # fmt: skip
    calls(f, [lambda n: ([numbers(3, 4, seed=n, grad=True), numbers(4, 2, seed=n)], {}),
              lambda n: ([numbers(3, 4, seed=n, grad=True) * 1, numbers(4, 2, seed=n)], {})],
          gradient=False)  # fmt: skip


def test_who_is_who():
    """The same tensor twice, two views of one memory, a captured tensor as argument: another pattern, another path."""
    captured = numbers(4, seed=50)

    def make(way):
        kept = captured.clone()

        def f(a, b):
            a.mul_(2)
            return a + b * 3 + kept

        compiled = way(f)

        def of(pattern):
            base = numbers(8, seed=1)
            return {
                "apart": lambda: (numbers(4, seed=1), numbers(4, seed=2)),
                "same": lambda: (base[:4],) * 2,
                "halves": lambda: (base[:4], base[4:]),
                "overlap": lambda: (base[:4], base[2:6]),
                "overlap elsewhere": lambda: (base[:4], base[1:5]),
                "captured first": lambda: (kept, numbers(4, seed=2)),
                "captured second": lambda: (numbers(4, seed=2), kept),
                "view of captured": lambda: (kept.view(4), numbers(4, seed=2)),
            }[pattern]()

        place = ["apart"]

        def call(number):
            a, b = of(place[0])
            return [compiled(a, b), a.clone(), b.clone(), kept.clone()]

        names = ["same", "halves", "overlap", "overlap elsewhere", "apart", "captured first", "captured second",
                 "view of captured", "apart"]  # fmt: skip
        return call, *[lambda name=name: place.__setitem__(0, name) for name in names]

    stay_equal(make)


class Box:
    def __init__(self, k):
        self.k = k


class Sub(Box):
    @property
    def twice(self):
        return self.k * 3


def test_objects_as_arguments():
    def make(way):
        box = [Box(2.0)]

        def f(x, box):
            return x * box.k + getattr(box, "twice", 0)

        compiled = way(f)

        def call(number):
            x = x_of(number)
            out = compiled(x, box[0])
            out.sum().backward()
            return [out.detach(), x.grad]

        return (call, lambda: setattr(box[0], "k", 3.0), lambda: box.__setitem__(0, Box(4.0)),
                lambda: box.__setitem__(0, Sub(4.0)), lambda: setattr(box[0], "twice_as", 1))  # fmt: skip

    stay_equal(make, python=True)


def test_arrays_as_arguments():
    calls(lambda x, a: x * wf.tensor(a), [given(x_of, np.full(4, 2.0)), given(x_of, np.full(4, 3.0)),
                                          given(x_of, np.full(1, 3.0))], python=True)  # fmt: skip


@pytest.mark.filterwarnings("ignore:compile:UserWarning")
def test_an_array_that_is_written_between_calls():
    array = np.ones(4)
    compiled = wf.compile(lambda x, a: x * float(a[0]))
    for number in range(6):
        array[:] = number
        equal(compiled(x_of(number), array), x_of(number) * float(number))


@pytest.mark.filterwarnings("ignore:compile:UserWarning")
def test_a_generator_as_argument():
    compiled = wf.compile(lambda x, parts: x * sum(parts))
    for number in range(5):
        parts = [float(v) for v in range(number + 1)]
        equal(compiled(x_of(number), (part for part in parts)), x_of(number) * sum(parts))


def test_a_list_that_the_function_fills():
    def make(way):
        def f(x, out):
            out.append(x * 2)
            return x + len(out)

        compiled = way(f)

        def call(number):
            out = [1] * (number % 3)
            return [compiled(x_of(number), out).detach(), [v.detach() if isinstance(v, wf.Tensor) else v for v in out]]

        return (call,)

    stay_equal(make, python=True)


# -- modes


@pytest.mark.parametrize("mode", [wf.no_grad, wf.inference_mode, lambda: wf.set_grad_enabled(False)])
def test_grad_mode(mode):
    w = numbers(4, 2, grad=True)

    def f(x):
        return (x @ w) * (2 if wf.is_grad_enabled() else 1)

    compiled = wf.compile(f)
    for number in range(12):
        x = x_of(number)
        with mode() if number // 4 == 1 else wf.enable_grad():
            got, want = compiled(x), f(x)
        equal(got, want)


def test_default_dtype():
    compiled = wf.compile(lambda x: x.sum() * wf.ones(2) + wf.tensor([0.1, 0.2]))
    before = wf.get_default_dtype()
    try:
        for dtype in (wf.float32, wf.float64, wf.float32):
            wf.set_default_dtype(dtype)
            for number in range(4):
                x = wf.arange(3) * number
                equal(compiled(x), x.sum() * wf.ones(2) + wf.tensor([0.1, 0.2]))
    finally:
        wf.set_default_dtype(before)


def test_random_state():
    def f(x):
        return F.dropout(x, 0.5) + wf.rand(4).double()

    compiled = wf.compile(f)
    results = []
    for way in (compiled, f):
        wf.manual_seed(3)
        out = [way(x_of(1)).detach() for _ in range(6)]
        state = wf.get_rng_state()
        out += [way(x_of(1)).detach() for _ in range(3)]
        wf.set_rng_state(state)
        again = [way(x_of(1)).detach() for _ in range(3)]
        equal(out[6:], again)
        wf.manual_seed(9)
        out += [way(x_of(1)).detach(), wf.rand(2)]
        results.append(out)
    equal(*results)
    assert not (results[0][1] == results[0][2]).all()


def test_a_generator_that_is_captured():
    def make(way):
        generator = wf.Generator()
        generator.manual_seed(5)
        call = way(lambda x: x + wf.rand(4, generator=generator).double())
        return (lambda number: call(x_of(number)).detach()), lambda: generator.manual_seed(7)

    stay_equal(make, seed=False)


def test_another_thread_has_its_own_modes():
    w = numbers(4, 2, grad=True)

    def f(x):
        return x @ w

    compiled = wf.compile(f)
    for number in range(4):
        compiled(x_of(number))
    found = []

    def elsewhere():
        with wf.no_grad():
            found.extend(compiled(x_of(number)) for number in range(4))

    with wf.enable_grad():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(found) == 4
    for number, got in enumerate(found):
        equal(got, f(x_of(number)).detach())
    equal(compiled(x_of(1)), f(x_of(1)))


def test_a_decision_that_turns_out_otherwise():
    layer = nn.Linear(4, 4).double()

    def f(x):
        steps = 0
        while x.abs().max() > 1:
            x = x / 2
            steps += 1
        return (layer(x) if x.sum() > 0 else x * 2) + steps

    compiled = wf.compile(f)
    for number in range(40):
        x = numbers(3, 4, seed=number) * (number % 7 + 0.1)
        equal(compiled(x), f(x))
