"""Random draws: reproducible by seed in any process and thread, of the right dtype, bounds and distribution."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, InPlaceError, OperationError, ShapeError

MANY = 20_000

# (draw of n numbers, the distribution they must have)
CONTINUOUS = {
    "rand": (lambda n, d: wf.rand(n, dtype=d), stats.uniform()),
    "randn": (lambda n, d: wf.randn(n, dtype=d), stats.norm()),
    "normal": (lambda n, d: wf.normal(2.0, 3.0, (n,), dtype=d), stats.norm(2, 3)),
    "normal of tensors": (lambda n, d: wf.normal(wf.ones(n, dtype=d), wf.full((n,), 2.0, dtype=d)), stats.norm(1, 2)),
    "uniform_": (lambda n, d: wf.zeros(n, dtype=d).uniform_(-1, 3), stats.uniform(-1, 4)),
    "normal_": (lambda n, d: wf.zeros(n, dtype=d).normal_(1, 2), stats.norm(1, 2)),
    "exponential_": (lambda n, d: wf.zeros(n, dtype=d).exponential_(2), stats.expon(scale=0.5)),
    "cauchy_": (lambda n, d: wf.zeros(n, dtype=d).cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal_": (lambda n, d: wf.zeros(n, dtype=d).log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
}


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.parametrize("dtype", [wf.float32, wf.float64])
def test_continuous_draws_have_their_distribution(name, dtype):
    draw, distribution = CONTINUOUS[name]
    drawn = draw(MANY, dtype)
    assert drawn.dtype is dtype
    # The seed is fixed, so this either always holds or never.
    assert stats.kstest(drawn.numpy().astype(np.float64), distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda: wf.randint(-2, 5, (MANY,)), stats.randint(-2, 5)),
        (lambda: wf.randint(4, (MANY,), dtype=wf.float32), stats.randint(0, 4)),
        (lambda: wf.bernoulli(wf.full((MANY,), 0.3)), stats.bernoulli(0.3)),
        (lambda: wf.zeros(MANY).bernoulli_(0.7), stats.bernoulli(0.7)),
        (lambda: wf.poisson(wf.full((MANY,), 3.5)), stats.poisson(3.5)),
        (lambda: wf.zeros(MANY, dtype=wf.int64).geometric_(0.4), stats.geom(0.4)),
        (lambda: wf.zeros(MANY).random_(2, 6), stats.randint(2, 6)),
        (lambda: wf.zeros(MANY).random_(3), stats.randint(0, 3)),
        (lambda: wf.multinomial(wf.tensor([1.0, 0.0, 2.0, 1.0]), MANY, True),
         stats.rv_discrete(values=([0, 2, 3], [0.25, 0.5, 0.25]))),
    ],
)  # fmt: skip
def test_discrete_draws_have_their_distribution(draw, distribution):
    values, counts = np.unique(draw().numpy(), return_counts=True)
    expected = distribution.pmf(values) * MANY
    assert expected.sum() > 0.995 * MANY and (expected > 0).all()
    common = expected > 10
    rest = MANY - counts[common].sum(), MANY - expected[common].sum()
    observed, wanted = np.append(counts[common], rest[0]), np.append(expected[common], rest[1])
    keep = wanted > 1e-6
    assert stats.chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue > 1e-3


def test_without_replacement_each_index_comes_once_and_likely_ones_first():
    weights = wf.tensor([[1.0, 1.0, 8.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    drawn = wf.stack([wf.multinomial(weights, 3) for _ in range(2000)])
    assert drawn.dtype is wf.int64 and tuple(drawn.shape) == (2000, 2, 3)
    rows = drawn.numpy()
    assert all(len(set(row)) == 3 for row in rows.reshape(-1, 3).tolist())
    assert not (rows[:, 0] == 3).any()
    assert abs((rows[:, 0, 0] == 2).mean() - 0.8) < 0.04
    assert abs((rows[:, 1, 0] == 2).mean() - 0.25) < 0.04


def test_randperm_is_a_permutation():
    p = wf.randperm(50)
    assert p.dtype is wf.int64 and sorted(p.tolist()) == list(range(50)) and p.tolist() != list(range(50))
    assert wf.randperm(5, dtype=wf.float32).dtype is wf.float32
    assert tuple(wf.randperm(0).shape) == (0,)


# -- reproducible -------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import wayfare as wf
wf.manual_seed(1234)
x = wf.randn(5), wf.rand(2, 2, dtype=wf.float64), wf.randint(0, 1000, (4,)), wf.randperm(6)
y = wf.nn.functional.dropout(wf.ones(12), 0.4), wf.multinomial(wf.ones(9), 4), wf.poisson(wf.full((3,), 4.0))
print([t.tolist() for t in x + y])
"""


def run_program():
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_same_seed_gives_the_same_numbers_in_fresh_processes():
    assert run_program() == run_program()


def test_draws_are_pinned():
    """What a seed gives should outlive an upgrade: a change of the stream must at least be noticed."""
    wf.manual_seed(0)
    np.testing.assert_allclose(wf.randn(3).numpy(), [0.05991104, 0.01555963, -1.1644385], rtol=1e-6)
    assert wf.randint(0, 100, (4,)).tolist() == [96, 21, 24, 21]


def test_manual_seed_and_states():
    wf.manual_seed(5)
    first = wf.rand(3).tolist()
    state = wf.get_rng_state()
    second, third = wf.rand(3).tolist(), wf.rand(3).tolist()
    assert first != second != third
    wf.set_rng_state(state)
    assert wf.rand(3).tolist() == second
    assert wf.manual_seed(5) is wf.default_generator and wf.initial_seed() == 5
    assert wf.rand(3).tolist() == first
    assert wf.manual_seed(-1).initial_seed() == 2**64 - 1
    with pytest.raises(ArgumentError, match="does not fit into 64 bits"):
        wf.manual_seed(2**64)
    with pytest.raises(ArgumentTypeError, match=r"a state is u8\[16\]"):
        wf.set_rng_state(wf.zeros(3))


def test_fresh_seeds_differ():
    assert wf.seed() != wf.seed()


def test_a_generator_of_ones_own_leaves_the_default_alone():
    wf.manual_seed(1)
    expected = wf.rand(2).tolist()
    wf.manual_seed(1)
    own = wf.Generator().manual_seed(1)
    assert wf.rand(2, generator=own).tolist() == expected
    other = wf.randn(3, generator=own.clone_state())
    assert wf.zeros(3).normal_(generator=own).tolist() == other.tolist()
    assert wf.rand(2).tolist() == expected
    with pytest.raises(ArgumentTypeError, match=r"generator must be a wf.Generator, not int"):
        wf.rand(2, generator=3)


def test_fork_rng_gives_the_state_back():
    state = wf.get_rng_state().tolist()
    with wf.random.fork_rng():
        wf.manual_seed(9)
        wf.rand(10)
    assert wf.get_rng_state().tolist() == state


def test_threads_never_share_a_draw():
    drawn = []

    def work():
        for _ in range(50):
            drawn.append(wf.rand(1).item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wf.manual_seed(0)
    assert sorted(drawn) == sorted(wf.rand(1).item() for _ in range(200))


# -- bounds, dtypes, gradients ------------------------------------------------------------------------------------


def test_uniform_never_reaches_its_upper_bound():
    for dtype in (wf.float16, wf.float32, wf.float64):
        assert wf.rand(100_000, dtype=dtype).max().item() < 1
        drawn = wf.zeros(100_000, dtype=dtype).uniform_(1, 1 + 2 * wf.finfo(dtype).eps)
        assert drawn.min().item() >= 1 and drawn.max().item() < 1 + 2 * wf.finfo(dtype).eps


def test_dtypes_of_draws():
    assert wf.rand(2, dtype=wf.float16).dtype is wf.float16
    assert wf.randint_like(wf.zeros(3), 5).dtype is wf.float32
    assert wf.randn_like(wf.zeros(3, dtype=wf.float64)).dtype is wf.float64
    assert wf.zeros(1000, dtype=wf.uint8).random_().max().item() > 200
    assert set(wf.zeros(100, dtype=wf.bool).random_().tolist()) == {True, False}
    assert wf.poisson(wf.tensor([3, 4])).dtype is wf.float32


def test_draws_are_constants_to_the_gradient():
    p = wf.full((4,), 0.5, requires_grad=True)
    out = wf.bernoulli(p)
    assert out.requires_grad
    out.sum().backward()
    assert p.grad.tolist() == [0, 0, 0, 0]
    mean = wf.zeros(2, requires_grad=True)
    wf.normal(mean, 1.0).sum().backward()
    assert mean.grad.tolist() == [0, 0]


def test_filling_draws_rewrite_history():
    leaf = wf.ones(3, requires_grad=True)
    x = leaf * 2
    x[:2].uniform_()
    x.sum().backward()
    assert leaf.grad.tolist() == [0, 0, 2]
    with pytest.raises(InPlaceError, match="uniform_: a leaf variable that requires grad"):
        leaf.uniform_()
    with wf.no_grad():
        leaf.normal_()
    assert leaf.requires_grad


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: wf.rand(2, dtype=wf.int64), DTypeError, "rand: draws floating-point numbers, not wayfare.int64"),
        (lambda: wf.randint(3, 3, (2,)), OperationError, "no number from 3 up to, not including, 3"),
        (lambda: wf.randint(3), ArgumentTypeError, "takes .high, size. or .low, high, size."),
        (lambda: wf.randperm(-1), OperationError, "n must not be negative"),
        (lambda: wf.normal(0.0, 1.0), ArgumentTypeError, "two numbers need a size"),
        (lambda: wf.normal(0.0, -1.0, (2,)), OperationError, "must not be negative"),
        (lambda: wf.normal(wf.zeros(2), wf.zeros(3)), ShapeError, r"f32\[2\] and deviations of f32\[3\]"),
        (lambda: wf.bernoulli(wf.tensor([1.5])), OperationError, r"must lie in \[0, 1\], these reach from 1.5"),
        (lambda: wf.multinomial(wf.zeros(3), 1), OperationError, "all zero"),
        (lambda: wf.multinomial(wf.ones(3), 4), OperationError, "cannot draw 4 of 3.*replacement=True"),
        (lambda: wf.multinomial(wf.tensor([1.0, 0.0]), 2), OperationError, "fewer than 2 weights are positive"),
        (lambda: wf.multinomial(wf.tensor([1.0, -1.0]), 1), OperationError, "not negative"),
        (lambda: wf.zeros(2).exponential_(0), OperationError, "exponential_: the rate must be positive"),
        (lambda: wf.zeros(2).uniform_(1, 0), OperationError, "must not be above"),
        (lambda: wf.zeros(2, dtype=wf.int64).normal_(), DTypeError, "normal_: draws floating-point numbers"),
        (lambda: wf.rand(2, sice=3), ArgumentTypeError, "rand: unknown argument 'sice'"),
    ],
)
def test_errors_are_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_normal_draws_have_the_dtype_of_their_means():
    for mean in (wf.float32, wf.bfloat16, wf.float16, wf.float64):
        for std in (wf.float32, wf.bfloat16, wf.float64):
            assert wf.normal(wf.zeros(2, dtype=mean), wf.ones(2, dtype=std)).dtype is mean
            assert wf.normal(0.0, wf.ones(2, dtype=std)).dtype is std
