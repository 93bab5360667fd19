"""First values of parameters: their bounds, moments and structure, and what is said about bad arguments."""

import math

import numpy as np
import pytest
from scipy import stats

import wayfare as wf
from wayfare.nn import init

SHAPE = (120, 50, 3, 3)
FAN_IN, FAN_OUT = 450, 1080


def leaf(*shape, dtype=wf.float32):
    return wf.full(shape, 7.0, dtype=dtype).requires_grad_()


def drawn(function, *args, shape=SHAPE, dtype=wf.float32, **options):
    """The values a function writes into a leaf, which it must hand back."""
    t = leaf(*shape, dtype=dtype)
    assert function(t, *args, **options) is t
    assert t.requires_grad and t.is_leaf and t.dtype is dtype
    return t.detach().numpy().astype(np.float64)


def check_uniform(values, low, high):
    assert low <= values.min() and values.max() <= high
    assert stats.kstest(values.ravel(), stats.uniform(low, high - low).cdf).pvalue > 1e-4


def check_normal(values, mean, std):
    assert stats.kstest(values.ravel(), stats.norm(mean, std).cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [wf.float32, wf.float64], ids=str)
def test_plain_distributions(dtype):
    check_uniform(drawn(init.uniform_, dtype=dtype), 0, 1)
    check_uniform(drawn(init.uniform_, -2.0, 5.0, dtype=dtype), -2, 5)
    check_normal(drawn(init.normal_, dtype=dtype), 0, 1)
    check_normal(drawn(init.normal_, mean=3.0, std=0.5, dtype=dtype), 3, 0.5)


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"),
    [(0, 1, -2, 2), (0, 0.02, -2, 2), (1, 2, 0, 1), (0, 1, 1, 2), (0, 1, -3, -1), (5, 1, -9, 6), (0.5, 1, 0.5, 0.5)],
)
def test_truncated_normal(mean, std, a, b):
    values = drawn(init.trunc_normal_, mean, std, a, b)
    assert a <= values.min() and values.max() <= b
    if a < b:
        limits = (a - mean) / std, (b - mean) / std
        assert stats.kstest(values.ravel(), stats.truncnorm(*limits, mean, std).cdf).pvalue > 1e-4


@pytest.mark.parametrize("side", [1, -1])
def test_truncated_normal_far_out(side):
    a, b = sorted((side * 12.0, side * 15.0))
    with pytest.warns(UserWarning, match="more than 2 deviations"):
        values = drawn(init.trunc_normal_, 0.0, 1.0, a, b, dtype=wf.float64)
    expected = stats.truncnorm(12, 15).cdf
    assert stats.kstest(side * values.ravel(), expected).pvalue > 1e-4


def test_half_precision_stays_in_its_bounds():
    values = drawn(init.trunc_normal_, 0.0, 1.0, -0.3, 0.3, dtype=wf.float16)
    limit = float(np.float16(0.3))
    assert -limit <= values.min() and values.max() <= limit
    q = drawn(init.orthogonal_, shape=(8, 4), dtype=wf.float16)
    assert q.T @ q == pytest.approx(np.eye(4), abs=5e-3)


def test_constants():
    assert (drawn(init.constant_, 3.5) == 3.5).all()
    assert (drawn(init.ones_) == 1).all()
    assert (drawn(init.zeros_) == 0).all()
    assert (drawn(init.eye_, shape=(3, 5)) == np.eye(3, 5)).all()


@pytest.mark.parametrize("shape", [(6, 2, 5), (2, 6, 4, 3), (4, 4, 3, 1, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_dirac_hands_channels_on(shape, groups):
    values = drawn(init.dirac_, groups, shape=shape)
    expected = np.zeros(shape)
    centre = tuple(size // 2 for size in shape[2:])
    per_group = shape[0] // groups
    for group in range(groups):
        for channel in range(min(per_group, shape[1])):
            expected[(group * per_group + channel, channel, *centre)] = 1
    assert (values == expected).all()


def test_xavier():
    std = math.sqrt(2 / (FAN_IN + FAN_OUT))
    check_uniform(drawn(init.xavier_uniform_), -math.sqrt(3) * std, math.sqrt(3) * std)
    check_uniform(drawn(init.xavier_uniform_, gain=2.0), -2 * math.sqrt(3) * std, 2 * math.sqrt(3) * std)
    check_normal(drawn(init.xavier_normal_), 0, std)
    check_normal(drawn(init.xavier_normal_, 0.5), 0, std / 2)


@pytest.mark.parametrize(("mode", "fan"), [("fan_in", FAN_IN), ("fan_out", FAN_OUT), ("FAN_IN", FAN_IN)])
@pytest.mark.parametrize(
    ("options", "gain"),
    [({}, math.sqrt(2)), ({"a": 1.0}, 1.0), ({"a": math.sqrt(5)}, math.sqrt(1 / 3)), ({"nonlinearity": "tanh"}, 5 / 3)],
)
def test_kaiming(mode, fan, options, gain):
    std = gain / math.sqrt(fan)
    check_uniform(drawn(init.kaiming_uniform_, mode=mode, **options), -math.sqrt(3) * std, math.sqrt(3) * std)
    check_normal(drawn(init.kaiming_normal_, mode=mode, **options), 0, std)


@pytest.mark.parametrize("shape", [(5, 5), (12, 7), (7, 12), (4, 3, 2, 2), (20, 3, 2), (1, 9)])
@pytest.mark.parametrize("gain", [1, 2.5])
def test_orthogonal(shape, gain):
    matrix = drawn(init.orthogonal_, gain, shape=shape, dtype=wf.float64).reshape(shape[0], -1) / gain
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    assert product == pytest.approx(np.eye(len(product)), abs=1e-12)


def test_orthogonal_matrices_are_equally_likely():
    # Of a random rotation in the plane the angle is uniform; with QR's own signs half of them would be missing.
    matrices = np.array([drawn(init.orthogonal_, shape=(2, 2)) for _ in range(500)])
    angles = np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0])
    check_uniform(angles, -math.pi, math.pi)
    assert 0.4 < np.mean(np.linalg.det(matrices) > 0) < 0.6


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.55, 1.0])
def test_sparse(sparsity):
    values = drawn(init.sparse_, sparsity, std=0.5, shape=(40, 300))
    zeros = math.ceil(sparsity * 40)
    assert ((values == 0).sum(0) == zeros).all()
    if zeros < 40:
        check_normal(values[values != 0], 0, 0.5)
    if 0 < zeros < 40:
        by_row = (values == 0).mean(1)
        assert abs(by_row - zeros / 40).max() < 0.15 and by_row.std() > 0


@pytest.mark.parametrize(
    "function",
    [
        init.uniform_, init.normal_, init.trunc_normal_, init.xavier_uniform_, init.xavier_normal_,
        init.kaiming_uniform_, init.kaiming_normal_, init.orthogonal_, lambda t, **o: init.sparse_(t, 0.3, **o),
    ],
)  # fmt: skip
def test_a_generator_decides_the_values(function):
    first = drawn(function, shape=(9, 8), generator=wf.Generator().manual_seed(3))
    state = wf.get_rng_state().tolist()
    again = drawn(function, shape=(9, 8), generator=wf.Generator().manual_seed(3))
    other = drawn(function, shape=(9, 8), generator=wf.Generator().manual_seed(4))
    assert wf.get_rng_state().tolist() == state
    assert (first == again).all() and (first != other).any()
    wf.manual_seed(5)
    plain = drawn(function, shape=(9, 8))
    assert (drawn(function, shape=(9, 8)) != plain).any()
    wf.manual_seed(5)
    assert (drawn(function, shape=(9, 8)) == plain).all()


def test_views_and_transposes_are_written_through():
    base = wf.zeros(6, 4)
    init.orthogonal_(base.t())
    assert base.numpy().T @ base.numpy() == pytest.approx(np.eye(4), abs=1e-5)
    init.ones_(base[1:3])
    assert base.numpy()[1:3].sum() == 8
    init.eye_(base[:, ::2])
    assert (base.numpy()[:, ::2] == np.eye(6, 2)).all()


@pytest.mark.parametrize(
    ("name", "gain"),
    [
        *[(name, 1) for name in ("linear", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose2d")],
        ("tanh", 5 / 3), ("relu", math.sqrt(2)), ("leaky_relu", math.sqrt(2 / 1.0001)), ("selu", 0.75),
    ],
)  # fmt: skip
def test_gains(name, gain):
    assert init.calculate_gain(name) == pytest.approx(gain)


def test_the_gain_of_a_slope():
    assert init.calculate_gain("leaky_relu", 0) == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 1) == 1


def test_tensors_without_elements():
    with pytest.warns(UserWarning, match="no elements"):
        init.kaiming_uniform_(wf.zeros(0, 3))
    with pytest.warns(UserWarning, match="no elements"):
        init.kaiming_normal_(wf.zeros(3, 0))
    for shape in ((0, 0), (0, 3), (3, 0)):
        for function in (init.xavier_uniform_, init.xavier_normal_, init.orthogonal_, init.trunc_normal_, init.eye_):
            assert function(wf.zeros(*shape)).shape == shape
        assert init.sparse_(wf.zeros(*shape), 0.5).shape == shape


BAD = [
    (lambda: init.uniform_([1.0]), TypeError, "uniform_: takes a Tensor, not list"),
    (lambda: init.uniform_(leaf(3), 2.0, 1.0), RuntimeError, "must not be above"),
    (lambda: init.normal_(leaf(3), 0.0, -1.0), RuntimeError, "must not be negative"),
    (lambda: init.trunc_normal_(leaf(3), 0.0, 0.0), ValueError, "std above 0"),
    (lambda: init.trunc_normal_(leaf(3), 0.0, 1.0, 2.0, 1.0), ValueError, "a not above b"),
    (lambda: init.eye_(leaf(3)), ValueError, r"2 dimensions, this is f32\[3\]"),
    (lambda: init.dirac_(leaf(3, 3)), ValueError, "3 or 4 or 5 dimensions"),
    (lambda: init.dirac_(leaf(3, 3, 3), 2), ValueError, "cannot be divided into 2 groups"),
    (lambda: init.xavier_uniform_(leaf(3)), ValueError, "at least 2 dimensions"),
    (lambda: init.kaiming_normal_(leaf(3)), ValueError, "at least 2 dimensions"),
    (lambda: init.kaiming_uniform_(leaf(3, 3), mode="fan"), ValueError, "mode must be 'fan_in' or 'fan_out'"),
    (lambda: init.kaiming_uniform_(leaf(3, 3), nonlinearity="gelu"), ValueError, "'gelu' is not known"),
    (lambda: init.calculate_gain("leaky_relu", True), ValueError, "must be a number"),
    (lambda: init.calculate_gain("leaky_relu", "a"), ValueError, "must be a number"),
    (lambda: init.orthogonal_(leaf(3)), ValueError, "at least 2 dimensions"),
    (lambda: init.sparse_(leaf(3), 0.1), ValueError, "2 dimensions"),
    (lambda: init.sparse_(leaf(3, 3), 1.5), ValueError, "between 0 and 1"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), BAD)
def test_bad_arguments_are_named(call, kind, sentence):
    with pytest.raises(kind, match=sentence) as raised:
        call()
    assert "test_init.py" in str(raised.value)
