"""Fast paths of replayed calls: not taken when anything is not as it was."""

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from tests.compiler.fast_paths import CALLS, model_of, predicting, warmed
from wayfare import nn

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


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
