"""Fast paths of replayed calls: taken when all is as it was, and never otherwise."""

import collections
import math
import threading

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

CALLS = 5


def warmed(function, *args, **options):
    """Compiled, and called until it has a fast path."""
    compiled = wf.compile(function)
    for _ in range(CALLS):
        compiled(*args, **options)
    assert compiled._fast_paths, compiled.explain()
    return compiled


def model_of(*, train=False):
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)).to(wf.float64).train(train)


def predicting(model):
    def predict(x):
        with wf.no_grad():
            return model(x)

    return predict


# -- they are taken ----------------------------------------------------------------------------------------------------


def test_a_model_that_answers(taken):
    predict = predicting(model_of())
    compiled = warmed(predict, numbers(2, 4))
    before = taken[0]
    for seed in range(4):
        x = numbers(2, 4, seed=seed)
        equal(compiled(x), predict(x))
    assert taken[0] == before + 4


def test_several_sizes_take_turns(taken):
    predict = predicting(model_of())
    compiled = wf.compile(predict)
    for turn in range(CALLS):
        before = taken[0]
        for size in (1, 2, 3):
            x = numbers(size, 4, seed=turn)
            equal(compiled(x), predict(x))
    assert taken[0] == before + 3


def test_many_sizes_take_turns(taken):
    compiled = wf.compile(lambda parts: wf.stack(parts).mean(0))
    parts = [numbers(4, seed=seed) for seed in range(12)]
    for _ in range(CALLS):
        before = taken[0]
        for size in range(1, 13):
            equal(compiled(parts[:size]), wf.stack(parts[:size]).mean(0))
    assert taken[0] == before + 12


def test_more_sizes_than_shortcuts_are_kept(taken, monkeypatch):
    monkeypatch.setattr("wayfare.compiler.replay.fast_path._MOST", 5)
    predict = predicting(model_of())
    compiled = wf.compile(predict)
    for turn in range(CALLS):
        before = taken[0]
        for size in range(1, 9):
            x = numbers(size, 4, seed=turn)
            equal(compiled(x), predict(x))
    assert taken[0] == before + 5 and len(compiled._fast_paths) == 5


@pytest.mark.parametrize("arrange", [
    lambda a, b, c: (a, (b, c)), lambda a, b, c: ([a, b], c), lambda a, b, c: ((a,), [(b,)], c, 3, None, "sum"),
])  # fmt: skip
def test_structures_of_arguments(arrange, taken):
    def flat(parts):
        return [t for part in parts for t in (flat(part) if isinstance(part, (tuple, list)) else [part])]

    def total(*parts):
        found = [t for t in flat(parts) if isinstance(t, wf.Tensor)]
        return found[0] - 2 * found[1] + 3 * found[2]

    args = arrange(*(numbers(3, seed=i) for i in range(3)))
    compiled = warmed(total, *args)
    before = taken[0]
    equal(compiled(*args), total(*args))
    assert taken[0] == before + 1
    other = arrange(*(numbers(3, seed=i) for i in range(7, 10)))
    equal(compiled(*other), total(*other))


def test_keyword_arguments(taken):
    def function(x, y=None, *, factor=1.0, flip=False):
        z = x * factor if y is None else x * factor + y
        return -z if flip else z

    calls = [
        dict(factor=2.0), dict(factor=2.0, flip=True), dict(flip=True, factor=2.0), dict(y=numbers(3, seed=1)), dict(),
    ]  # fmt: skip
    compiled = wf.compile(function)
    for turn in range(CALLS):
        before = taken[0]
        for options in calls:
            x = numbers(3, seed=turn)
            equal(compiled(x, **options), function(x, **options))
    assert taken[0] == before + len(calls)
    for options in [dict(factor=3.0), dict(factor=2), dict(factor=-0.0), dict(y=numbers(1)), dict(flip=1, factor=2.0)]:
        for _ in range(CALLS):
            equal(compiled(x, **options), function(x, **options))
    with pytest.raises(TypeError):
        compiled(x, factors=2.0)


@pytest.mark.parametrize("number", [0.0, -0.0, 2.5, -1.0, float("inf"), float("-inf"), float("nan")])
def test_floats_among_the_arguments(number, taken):
    def function(x, number):
        return x + math.copysign(1.0, number), repr(number)

    compiled = warmed(function, numbers(3), number)
    before = taken[0]
    equal(compiled(numbers(3), float(repr(number))), function(numbers(3), number))
    assert taken[0] == before + 1
    for other in [0.0, -0.0, 2.5, -1.0, float("inf"), float("-inf"), float("nan"), 0, True]:
        assert compiled(numbers(3), other)[1] == repr(other)


def test_dictionaries_among_the_arguments(taken):
    def function(batch):
        return batch["x"] * batch["scale"], list(batch), isinstance(batch, collections.OrderedDict)

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            return True

    x = numbers(3)
    compiled = warmed(function, {"x": x, "scale": 2.0})
    before = taken[0]
    equal(compiled({"x": x + 1, "scale": 2.0}), function({"x": x + 1, "scale": 2.0}))
    assert taken[0] == before + 1
    for batch in [
        {"scale": 2.0, "x": x}, {"x": x, "scale": 3.0}, {"x": x, "scale": 2.0, "more": None},
        collections.OrderedDict(x=x, scale=2.0), {Name("x"): x, Name("scale"): 2.0},
    ]:  # fmt: skip
        for _ in range(CALLS):
            made, expected = compiled(batch), function(batch)
            equal(made[0], expected[0])
            assert list(map(type, made[1])) == list(map(type, expected[1])) and made[2] is expected[2]
            assert list(map(str.__str__, made[1])) == list(map(str.__str__, expected[1]))


def test_named_tuples_among_the_arguments(taken):
    Pair, Other = (collections.namedtuple(name, "first second") for name in ("Pair", "Other"))

    def function(pair):
        return pair[0] * 2 + pair[1], type(pair).__name__

    x = numbers(3)
    compiled = warmed(function, Pair(x, x + 1))
    before = taken[0]
    equal(compiled(Pair(x + 1, x)), function(Pair(x + 1, x)))
    assert taken[0] == before + 1
    for kind in (Other, lambda *parts: parts, Pair):
        for _ in range(CALLS):
            equal(compiled(kind(x, x + 1)), function(kind(x, x + 1)))


@pytest.mark.parametrize("results", [
    lambda y: y, lambda y: (y, y + 1), lambda y: [y], lambda y: {"y": y, "n": 3}, lambda y: (y, (y, 2.5)),
    lambda y: None, lambda y: (), lambda y: y.sum().item(),
])  # fmt: skip
def test_structures_of_results(results):
    def function(x):
        return results((x * 2).detach())

    compiled = wf.compile(function)
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        equal(compiled(x), function(x))


def test_methods(taken):
    class Scaled:
        def __init__(self, factor):
            self.factor = numbers(3) * factor

        @wf.compile
        def __call__(self, x):
            return x * self.factor

    one, other = Scaled(2.0), Scaled(3.0)
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        before = taken[0]
        equal(one(x), x * one.factor)
        equal(other(x), x * other.factor)
    assert taken[0] == before + 2


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_structure_in_the_place_of_self_is_known_by_identity(kind):
    class Line:
        @wf.compile
        def at(terms, x):
            return terms[0] * x + terms[1]

    lines = [kind([numbers(3, seed=seed), numbers(3, seed=seed + 1)]) for seed in (1, 5)]
    for seed in range(CALLS):
        x = numbers(3, seed=seed)
        for terms in lines:
            equal(Line.at(terms, x), terms[0] * x + terms[1])


def test_the_same_structure_in_the_place_of_self_and_after_it():
    class Line:
        @wf.compile
        def product(one, other):
            return one[0] * other[0]

    for seed in range(CALLS):
        one = (numbers(3, seed=seed),)
        for _ in range(CALLS):
            equal(Line.product(one, one), one[0] * one[0])


def test_each_call_has_memory_of_its_own():
    compiled = warmed(lambda x: (x * 2, x + 1), numbers(3))
    results = [t for seed in range(3) for t in compiled(numbers(3, seed=seed))]
    for i, one in enumerate(results):
        assert not any(np.may_share_memory(one.numpy(), other.numpy()) for other in results[i + 1 :])
        assert one.is_leaf and not one.requires_grad and one.numpy().flags.writeable


def test_calls_are_counted():
    compiled = warmed(lambda x: x * 2, numbers(3))
    before = compiled._calls
    compiled(numbers(3))
    assert compiled._calls == before + 1
    assert f"{before + 1} calls, {before} replayed" in str(compiled.explain())


def test_many_threads_at_once():
    predict = predicting(model_of())
    compiled = warmed(predict, numbers(2, 4))
    wrong = []

    def work(seed):
        for turn in range(30):
            x = numbers(2, 4, seed=100 * seed + turn)
            if not np.allclose(compiled(x).numpy(), predict(x).numpy()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- they are not taken ------------------------------------------------------------------------------------------------


def changes_of_the_model():
    def in_place(model):
        with wf.no_grad():
            model[0].weight.mul_(2)

    def loaded(model):
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})

    def other_memory(model):
        model[0].weight.data = numbers(6, 4, seed=5)

    def other_parameter(model):
        model[3].bias = nn.Parameter(numbers(3, seed=5))

    def without_bias(model):
        model[3].bias = None

    def other_layer(model):
        model[1] = nn.Tanh()

    def other_layout(model):
        model[0].weight.data = numbers(4, 6, seed=5).T

    def frozen(model):
        model[0].weight.requires_grad_(False)

    def trained(model):
        model.train()

    def hooked(model):
        model[0].register_forward_hook(lambda module, args, out: out + 1)

    return [in_place, loaded, other_memory, other_parameter, without_bias, other_layer, other_layout, frozen, trained,
            hooked]  # fmt: skip


@pytest.mark.parametrize("change", changes_of_the_model(), ids=lambda f: f.__name__)
def test_changes_of_the_model_are_seen(change):
    model = model_of()
    predict = predicting(model)
    x = numbers(2, 4)
    compiled = warmed(predict, x)
    change(model)
    for _ in range(CALLS):
        results = []
        for way in (compiled, predict):
            wf.manual_seed(3)
            results.append(way(x))
        equal(*results)


def test_weights_that_move_keep_their_fast_path(taken):
    model = model_of()
    predict = predicting(model)
    compiled = warmed(predict, numbers(2, 4))
    for seed in range(3):
        model[0].weight.data = numbers(6, 4, seed=seed)
        x = numbers(2, 4, seed=seed)
        equal(compiled(x), predict(x))  # the long way, which tells the fast path where they lie
        before = taken[0]
        equal(compiled(x), predict(x))
        assert taken[0] == before + 1


def changes_of_arguments():
    x = numbers(2, 4)
    wide = numbers(2, 8)
    frozen = numbers(2, 4)
    frozen._array.flags.writeable = False
    return {
        "another size": numbers(3, 4), "another dtype": x.to(wf.float32), "turned": numbers(4, 2).T,
        "a view": wide[:, 4:], "a part of a row": wide[:, ::2], "wants a gradient": numbers(2, 4, grad=True),
        "computed": numbers(2, 4, grad=True) * 2, "a parameter": nn.Parameter(numbers(2, 4)), "read-only": frozen,
    }  # fmt: skip


@pytest.mark.parametrize("name", changes_of_arguments())
def test_other_arguments(name):
    def function(x):
        return x.to(wf.float64) @ weight + x.sum()

    weight = numbers(4, 3)
    compiled = warmed(function, numbers(2, 4))
    other = changes_of_arguments()[name]
    for _ in range(CALLS):
        equal(compiled(other), function(other))
    equal(compiled(numbers(2, 4)), function(numbers(2, 4)))


def test_other_numbers_of_arguments_and_other_things():
    def function(x, times=2, name="a"):
        return x * times + len(name)

    x = numbers(3)
    compiled = warmed(function, x)
    for args in [(x, 3), (x, 3), (x, True), (x, 2, "ab"), (x, 2.0), (x,)]:
        for _ in range(CALLS):
            equal(compiled(*args), function(*args))
    equal(compiled(x, times=5), function(x, times=5))
    with pytest.raises(TypeError):
        compiled()


def test_a_list_is_no_tuple():
    compiled = warmed(lambda pair: (pair[0] + pair[1], isinstance(pair, list)), (numbers(3), numbers(3)))
    assert compiled([numbers(3), numbers(3)])[1] is True
    assert compiled((numbers(3), numbers(3)))[1] is False


def test_arguments_that_share_memory():
    def function(x, y):
        return x * y, x is y

    compiled = warmed(function, numbers(3), numbers(3, seed=1))
    x = numbers(6)
    for args in [(x[:3], x[3:]), (x[:3], x[:3]), (x, x)]:
        for _ in range(CALLS):
            equal(compiled(*args), function(*args))
    assert len(compiled._fast_paths) == 1  # for those that share none


def test_an_argument_that_is_a_weight(taken):
    model = model_of()
    compiled = warmed(lambda x: (x @ model[0].weight.T).detach(), numbers(6, 4))
    before = taken[0]
    weight = model[0].weight.detach()
    equal(compiled(weight), (weight @ weight.T))
    assert taken[0] == before


def test_modes_are_part_of_the_call():
    weight = numbers(3, grad=True)

    def function(x):
        return x * weight

    x = numbers(3)
    compiled = wf.compile(function)
    for _ in range(CALLS):
        with wf.no_grad():
            assert not compiled(x).requires_grad
        assert compiled(x).requires_grad
        with wf.inference_mode():
            assert compiled(x).is_inference()
        with wf.no_grad():
            assert not compiled(x).is_inference()


def test_the_default_dtype_is_part_of_the_call():
    compiled = warmed(lambda x: x + wf.zeros(3), wf.ones(3, dtype=wf.float16))
    assert compiled(wf.ones(3, dtype=wf.float16)).dtype == wf.float32
    wf.set_default_dtype(wf.float64)
    try:
        for _ in range(CALLS):
            assert compiled(wf.ones(3, dtype=wf.float16)).dtype == wf.float64
    finally:
        wf.set_default_dtype(wf.float32)


def test_globals_and_closures_are_guarded():
    factor = 2.0

    def function(x):
        return x * factor

    compiled = warmed(function, numbers(3))
    factor = 3.0
    for _ in range(CALLS):
        equal(compiled(numbers(3)), numbers(3) * 3)


def test_a_replay_by_a_shortcut_is_a_replay():
    """Between them, something else may be recorded as often as it likes."""
    factor = 0.0

    def function(x):
        return x * factor

    compiled = warmed(function, numbers(3))
    for other in range(1, 20):
        for factor in (float(other), 0.0):
            equal(compiled(numbers(3)), numbers(3) * factor)
    assert not compiled._cache._reasons


@pytest.mark.parametrize("function, has_one", [
    (lambda x: x.add_(1), True), (lambda x: x * 2 if x.sum() > 0 else x, True), (lambda x: x, True),
    (lambda x: x[1:], True), (lambda x: nn.functional.dropout(x, 0.5), False),
], ids=["writes", "decides", "hands on", "looks into", "draws"])  # fmt: skip
def test_what_does_more_than_compute(function, has_one):
    compiled = wf.compile(function)
    for call in range(2 * CALLS):
        results = []
        for way in (compiled, function):
            wf.manual_seed(call)
            x = numbers(3, seed=call)
            results.append((way(x), x))
        equal(*results)
    assert bool(compiled._fast_paths) is has_one


def test_a_checked_function_has_none():
    compiled = wf.compile(lambda x: x * 2, check=True)
    for _ in range(CALLS):
        compiled(numbers(3))
    assert not compiled._fast_paths


def test_a_watcher_that_wants_every_op_gets_it(taken):
    compiled = warmed(lambda x: x * 2, numbers(3))
    before = taken[0]
    with wf.autograd.detect_anomaly():
        equal(compiled(numbers(3)), numbers(3) * 2)
    assert taken[0] == before


def test_a_shortcut_that_fails_leaves_it_to_the_long_way():
    compiled = warmed(lambda x: x * 2, numbers(3))
    (short,) = compiled._fast_paths

    def fails(args, options, mode):
        raise ValueError("broken")

    short.call = fails
    equal(compiled(numbers(3)), numbers(3) * 2)


# -- memory between the steps ------------------------------------------------------------------------------------------


def test_results_do_not_lie_in_memory_that_is_kept():
    model = model_of()
    compiled = warmed(predicting(model), numbers(2, 4))
    inputs = [numbers(2, 4, seed=seed) for seed in range(4)]
    made = [compiled(x) for x in inputs]
    for x, y in zip(inputs, made, strict=True):
        equal(y, predicting(model)(x))


@pytest.mark.parametrize("width, kept", [(8, True), (20_000, False)])
def test_only_little_memory_is_kept(width, kept):
    weight = wf.ones(4, width)

    def predict(x):
        return (x @ weight).relu() @ weight.T

    compiled = warmed(predict, wf.ones(2, 4))
    (short,) = compiled._fast_paths
    held = [a for a in short._native._own if a.dtype == np.uint8]
    assert bool(held) is kept and short._native.arena_bytes >= 2 * width * 4
