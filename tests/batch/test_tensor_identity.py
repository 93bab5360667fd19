"""Which tensor an argument is: examples whose arguments are, or overlap, tensors that the function reads."""

import pytest

import wayfare as wf


def full(value):
    return wf.full((3,), value)


def numbers(results):
    return [t.sum().item() for t in results]


@pytest.mark.parametrize("batch", [True, None])
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("alias", [lambda w: w, lambda w: w.detach(), lambda w: w.view(3), lambda w: w[:]],
                         ids=["itself", "detached", "view", "slice"])  # fmt: skip
def test_an_argument_that_is_also_read(alias, place, batch):
    w = full(10.0)

    def f(x):
        return x * w + x

    for turn in range(20):
        xs = [full(2.0), full(3.0), full(4.0), full(5.0)]
        if turn % 3 != 1:
            xs[place] = alias(w)
        assert numbers(wf.map(f, xs, batch=batch)) == numbers([f(x) for x in xs])


@pytest.mark.parametrize("batch", [True, None])
def test_arguments_that_overlap_what_is_read(batch):
    big = wf.arange(12.0)

    def f(x):
        return (x * big[:4]).sum() + big.sum()

    xs = [big[i : i + 4] for i in range(8)] + [wf.ones(4), wf.zeros(4)]
    for _ in range(20):
        assert numbers(wf.map(f, xs, batch=batch)) == numbers([f(x) for x in xs])


UNKNOWN = full(10.0)
SPECIAL = {UNKNOWN}
TABLE = {UNKNOWN: 5.0}


def by_is(a, b):
    return (a + b).relu() * (100.0 if a is UNKNOWN else 1.0) + b


def by_set(a, b):
    return (a + b).relu() * (100.0 if a in SPECIAL else 1.0) + b


def by_table(a, b):
    return (a + b).relu() * TABLE.get(a, 1.0) + b


def by_each_other(a, b):
    return (a + b).relu() * (100.0 if a is b else 1.0) + b


@pytest.mark.parametrize("batch", [True, None])
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("join", [by_is, by_set, by_table, by_each_other])
def test_helpers_that_ask_which_tensor_it_is(join, compiled, batch):
    joined = wf.compile(join) if compiled else join
    words = [full(1.0), full(2.0), full(3.0)]

    def leaf(number):
        return UNKNOWN if number < 0 else words[number]

    def reduce(tree):
        return joined(leaf(tree[0]), leaf(tree[1]))

    trees = [(0, 1), (1, 2), (-1, 0), (2, 2), (0, 0), (-1, -1)]
    for _ in range(15):
        assert numbers(wf.map(reduce, trees, batch=batch)) == numbers([reduce(tree) for tree in trees])


def test_a_comparison_with_none_is_no_reason_to_record_op_by_op():
    layer = wf.nn.Linear(3, 3)

    def step(x, state):
        return layer(x).tanh() if state is None else (layer(x) + state).tanh() * 0.5

    def run(xs):
        state = None
        for x in xs:
            state = step(x, state)
        return state

    sequences = [[full(float(i + k)) for k in range(4)] for i in range(6)]
    wf.map(run, sequences, batch=True)
    assert "step" in {kind.name for kind in wf.batching.last().kinds}
