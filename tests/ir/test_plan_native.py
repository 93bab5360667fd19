"""Ops with a native form inside plans: the same results as by their records, and no step in Python."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.llvm.machine import machine
from wayfare.codegen.routines import recurrent
from wayfare.codegen.runtime import kernel
from wayfare.codegen.runtime.blas import openblas
from wayfare.core.op import REGISTRY
from wayfare.ir.graph import leaf, record
from wayfare.ir.plan.plan import Plan

pytestmark = pytest.mark.skipif(not kernel.available() or openblas() is None, reason="no OpenBLAS or no llvmlite here")
RNG = np.random.default_rng(0)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request):
    before = wf.get_num_threads()
    wf.set_num_threads(request.param)
    yield
    wf.set_num_threads(before)


def some(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def planned(name, arrays, attrs, wanted=None):
    """A plan of one step, for some of its outputs."""
    op = REGISTRY[name]
    values = [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(arrays)]
    made = record(op, values, attrs)
    made = list(made) if isinstance(made, tuple) else [made]
    chosen = range(len(made)) if wanted is None else wanted
    return Plan(name, values, [made[i] for i in chosen], [], arrays), list(chosen)


def check(name, arrays, attrs, wanted=None, *, natively=True):
    """Twice, because the old contents of a buffer must not matter."""
    plan, chosen = planned(name, arrays, attrs, wanted)
    assert plan.python_steps == (0 if natively else 1), plan.describe()
    want = REGISTRY[name].forward(*arrays, **attrs)
    want = want if isinstance(want, tuple) else (want,)
    exact = arrays[0].dtype == np.float64
    for _ in range(2):
        for got, number in zip(plan.run(arrays), chosen, strict=True):
            assert got.dtype == want[number].dtype and got.flags.c_contiguous
            np.testing.assert_allclose(got, want[number], 1e-10 if exact else 2e-4, 1e-12 if exact else 2e-5)
    return plan


# -- convolutions ------------------------------------------------------------------------------------------------------


def how(rank, stride=1, padding=0, dilation=1, groups=1):
    return {"stride": (stride,) * rank, "padding": (padding,) * rank, "dilation": (dilation,) * rank, "groups": groups}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stride, padding, dilation, groups", [
    (1, 1, 1, 1), (2, 1, 1, 1), (1, 0, 2, 1), (1, 2, 1, 2), (2, 0, 1, 4),
])  # fmt: skip
def test_convolutions(dtype, stride, padding, dilation, groups):
    x, weight, bias = some(3, 8, 11, 10, dtype=dtype), some(12, 8 // groups, 3, 3, dtype=dtype), some(12, dtype=dtype)
    attrs = how(2, stride, padding, dilation, groups)
    check("conv", [x, weight], attrs)
    check("conv_bias", [x, weight, bias], attrs)


def test_a_convolution_that_threads_share():
    attrs = how(2, padding=1)
    check("conv_bias", [some(9, 16, 28, 28), some(24, 16, 3, 3), some(24)], attrs)
    check("conv_bias", [some(1, 32, 28, 28), some(48, 32, 3, 3), some(48)], attrs)


def test_convolutions_along_one_axis():
    check("conv_bias", [some(2, 4, 40), some(6, 4, 5), some(6)], how(1, padding=2))


def test_a_convolution_of_what_does_not_lie_row_after_row():
    x, weight = some(3, 9, 8, 8).transpose(0, 2, 1, 3)[:, :, :8], some(3, 3, 8, 12).transpose(3, 2, 0, 1)
    check("conv_bias", [x, weight, some(24)[::2]], how(2, padding=1))


@pytest.mark.parametrize("arrays, attrs", [
    ([some(2, 8, 9, 9), some(8, 1, 3, 3)], how(2, groups=8)),
    ([some(2, 8, 9, 9), some(8, 8, 1, 1)], how(2)),
    ([some(1, 1, 3, 3), some(1, 1, 2, 2)], how(2)),
    ([some(2, 2, 5, 5, 5), some(3, 2, 3, 3, 3)], how(3)),
    ([some(2, 8, 40, 40), some(8, 8, 3, 3)], how(2, stride=5)),
], ids=["depthwise", "of single pixels", "tiny", "three axes", "far apart"])  # fmt: skip
def test_other_convolutions_go_another_way(arrays, attrs):
    check("conv", arrays, attrs, natively=False)


# -- pooling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wanted", [[0], [1], [0, 1], [1, 0]])
def test_max_pooling(dtype, wanted):
    x = some(2, 5, 9, 8, dtype=dtype)
    x[0, 0, 0, 0] = np.nan
    attrs = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0), "dilation": (1, 1), "counts": (5, 4)}
    check("max_pool", [x], attrs, wanted)
    check("max_pool", [some(40, 32, 28, 28, dtype=dtype)], attrs | {"counts": (14, 14)}, wanted)


def test_pooling_of_whole_numbers_or_of_very_few_goes_another_way():
    attrs = {"kernel": (2,), "stride": (2,), "padding": (0,), "dilation": (1,), "counts": (2,)}
    check("max_pool", [some(1, 1, 4)], attrs, natively=False)
    check("max_pool", [RNG.integers(0, 9, (64, 32, 4))], attrs, natively=False)


# -- recurrences -------------------------------------------------------------------------------------------------------

GATES = {"lstm_sequence": 4, "gru_sequence": 3, "rnn_tanh_sequence": 1, "rnn_relu_sequence": 1}


def recurrence(name, rows, steps, hidden=6, features=5, dtype=np.float32):
    states = 2 if name == "lstm_sequence" else 1
    width = GATES[name] * hidden
    shapes = [(rows * steps, features), *[(rows, hidden)] * states, (width, features), (width, hidden), (width,),
              (width,)]  # fmt: skip
    arrays = [some(*shape, dtype=dtype) for shape in shapes]
    # Weights with which a state neither grows nor is forgotten: else rounding is all one sees after many steps.
    arrays[-4:-2] = [a / np.sqrt(a.shape[1], dtype=dtype) for a in arrays[-4:-2]]
    return arrays, states


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_recurrences(name, dtype):
    for rows, steps, reverse in itertools.product((1, 4, 20), (1, 2, 45), (False, True)):
        arrays, states = recurrence(name, rows, steps, dtype=dtype)
        attrs = {"sizes": (rows,) * steps, "reverse": reverse}
        for wanted in ([0], [states], list(range(1, 1 + states)), list(range(1 + states))):
            check(name, arrays, attrs, wanted)


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("rows, hidden, features, steps", [
    (1, 1, 1, 3), (1, 64, 70, 5), (2, 16, 1, 1), (3, 37, 4, 4), (13, 8, 3, 2), (29, 48, 17, 3), (64, 33, 2, 2),
    (150, 20, 10, 3),
])  # fmt: skip
def test_recurrences_of_any_size(name, rows, hidden, features, steps):
    arrays, states = recurrence(name, rows, steps, hidden, features)
    check(name, arrays, {"sizes": (rows,) * steps, "reverse": False}, list(range(1 + states)))
    check(name, arrays, {"sizes": (rows,) * steps, "reverse": True}, [1])


def test_all_steps_of_many_sequences_are_one_command():
    arrays, _ = recurrence("lstm_sequence", 24, 700, hidden=16, features=8)
    plan = check("lstm_sequence", arrays, {"sizes": (24,) * 700, "reverse": False}, [1])
    ((commands, _),) = plan.native_lists()
    titles = commands.titles
    assert titles.count("lstm_sequence 700×24×8→16 float32") == 1 and len(titles) < 10


@pytest.mark.parametrize("name", GATES)
def test_recurrences_on_a_processor_with_half_as_long_vectors(name, monkeypatch):
    monkeypatch.setattr(machine(), "processor", replace(machine().processor, lanes=8))
    recurrent._routine.cache_clear()
    arrays, _ = recurrence(name, 23, 3, hidden=21)
    check(name, arrays, {"sizes": (23,) * 3, "reverse": False}, [0, 1])
    recurrent._routine.cache_clear()


def test_a_unit_that_is_no_number_leaves_the_others_alone():
    """The lanes beyond the last unit repeat it, and are thrown away."""
    arrays, _ = recurrence("gru_sequence", 9, 1, hidden=5)
    arrays[2][-1] = np.nan
    plan, _ = planned("gru_sequence", arrays, {"sizes": (9,), "reverse": False}, [1])
    (got,) = plan.run(arrays)
    assert np.isfinite(got[:, :4]).all() and np.isnan(got[:, 4]).all()


@pytest.mark.parametrize("name", GATES)
def test_recurrences_whose_gradient_is_wanted_keep_what_it_reads(name):
    arrays, _ = recurrence(name, 3, 4)
    check(name, arrays, {"sizes": (3,) * 4, "reverse": False}, natively=False)


@pytest.mark.parametrize("sizes, states, steps", [
    ((3, 3, 2), 3, 0), ((2, 2), 3, 0),
], ids=["of several lengths", "with more states"])  # fmt: skip
def test_other_recurrences_go_another_way(sizes, states, steps):
    arrays, _ = recurrence("lstm_sequence", states, steps)
    arrays[0] = some(sum(sizes), 5)
    check("lstm_sequence", arrays, {"sizes": sizes, "reverse": False}, [0, 1, 2], natively=False)


def test_half_precision_goes_another_way():
    arrays, _ = recurrence("lstm_sequence", 2, 3)
    arrays = [a.astype(np.float16) for a in arrays]
    plan, _ = planned("lstm_sequence", arrays, {"sizes": (2,) * 3, "reverse": False}, [1])
    assert plan.python_steps == 1


def test_states_that_do_not_lie_row_after_row():
    arrays, _ = recurrence("lstm_sequence", 4, 3)
    arrays[1], arrays[3], arrays[4] = some(6, 4).T, some(5, 24).T, some(24, 12)[:, ::2]
    check("lstm_sequence", arrays, {"sizes": (4,) * 3, "reverse": False}, [0, 1, 2])


# -- among other steps -------------------------------------------------------------------------------------------------


def test_between_loops_and_products_there_is_one_native_call():
    model = wf.nn.Sequential(
        wf.nn.Conv2d(1, 16, 3, padding=1), wf.nn.BatchNorm2d(16), wf.nn.ReLU(), wf.nn.MaxPool2d(2), wf.nn.Flatten(),
        wf.nn.Linear(256, 10),
    ).eval()  # fmt: skip

    @wf.compile
    def predict(x):
        with wf.no_grad():
            return model(x)

    for seed in range(4):
        wf.manual_seed(seed)
        x = wf.randn(2, 1, 8, 8)
        np.testing.assert_allclose(predict(x).numpy(), model(x).detach().numpy(), 1e-4, 1e-5)
    assert "1 native call" in str(predict.explain()) and "in Python" not in str(predict.explain())


@pytest.mark.parametrize("kind, options", [
    ("LSTM", {"num_layers": 2, "bidirectional": True}), ("GRU", {"batch_first": True}), ("RNN", {}),
])  # fmt: skip
def test_layers_learn_and_answer(kind, options):
    """The same compiled function with a gradient, which goes by the record, and without."""
    layer = getattr(wf.nn, kind)(5, 6, **options)
    compiled = wf.compile(lambda x: layer(x)[0])
    for seed in range(5):
        wf.manual_seed(seed)
        x = wf.randn(3, 4, 5)
        with wf.no_grad():
            np.testing.assert_allclose(compiled(x).numpy(), layer(x)[0].numpy(), 1e-4, 1e-5)
        grads = []
        for way in (compiled, lambda x: layer(x)[0]):
            layer.zero_grad()
            (way(x) ** 2).sum().backward()
            grads.append([p.grad.numpy().copy() for p in layer.parameters()])
        for mine, theirs in zip(*grads, strict=True):
            np.testing.assert_allclose(mine, theirs, 1e-3, 1e-5)


def test_what_native_code_refuses_runs_by_the_record(monkeypatch):
    """The form in Python writes to the same places."""
    monkeypatch.setattr("wayfare.codegen.runtime.commands.Commands.routine", lambda self, request: False)
    arrays = [some(2, 8, 6, 6), some(4, 8, 3, 3), some(4)]
    check("conv_bias", arrays, how(2, padding=1), natively=False)
    arrays, _ = recurrence("lstm_sequence", 2, 3)
    check("lstm_sequence", arrays, {"sizes": (2,) * 3, "reverse": False}, [2, 1], natively=False)
