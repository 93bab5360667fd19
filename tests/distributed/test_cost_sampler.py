"""Examples dealt by cost: every one once, the same number to each rank, and ranks that finish together."""

import ast
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.distributed import CostSampler, RecordedCost
from wayfare.distributed.costs import structure_of
from wayfare.utils.data import DataLoader, DistributedSampler


def nested(node):
    """A syntax tree as nested tuples of kinds and children."""
    return (type(node).__name__, *[nested(child) for child in ast.iter_child_nodes(node)])


def size(tree):
    return 1 + sum(size(child) for child in tree[1:])


def stdlib_trees(count=600):
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        found += [nested(n) for n in ast.walk(module) if isinstance(n, ast.FunctionDef)]
        if len(found) >= count:
            return found[:count]
    return found


TREES = stdlib_trees()
SIZES = [size(tree) for tree in TREES]
LENGTHS = np.random.default_rng(0).integers(5, 200, 1000).tolist()


def by_count(costs, ranks, batch):
    """The waiting time of a DistributedSampler."""
    parts = [list(DistributedSampler(costs, ranks, rank, seed=3)) for rank in range(ranks)]
    loads = np.array([[sum(costs[i] for i in part[at : at + batch]) for part in parts]
                      for at in range(0, len(parts[0]), batch)])  # fmt: skip
    return 1 - loads.mean(1).sum() / loads.max(1).sum()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("batch", [8, 32])
@pytest.mark.parametrize("costs", [SIZES, LENGTHS], ids=["trees", "sequences"])
def test_waiting_is_at_most_five_percent(costs, batch, ranks):
    sampler = CostSampler(costs, costs, ranks, 0, batch_size=batch, seed=3)
    before, after = by_count(costs, ranks, batch), sampler.waiting(costs)
    assert after < 0.05 < before


@pytest.mark.parametrize("costs", [SIZES, LENGTHS], ids=["trees", "sequences"])
def test_steps_of_one_example_for_each_rank(costs):
    # One tree that has no equal cannot be dealt evenly.
    assert CostSampler(costs, costs, 4, 0, seed=3).waiting(costs) < by_count(costs, 4, 1) / 5


def test_without_knowing_the_batch_size_of_the_loader():
    sampler = CostSampler(SIZES, SIZES, 2, 0, seed=3)
    order = np.array([list(CostSampler(SIZES, SIZES, 2, rank, seed=3)) for rank in range(2)])
    loads = np.array(SIZES)[order].reshape(2, -1, 20).sum(2)
    assert 1 - loads.mean(0).sum() / loads.max(0).sum() < 0.05
    assert len(sampler) == len(order[0])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 97])
def test_every_example_comes_once_and_ranks_get_equally_many(count, shuffle, drop_last):
    costs = list(range(1, count + 1))
    if drop_last and count < 3:
        with pytest.raises(ValueError, match="fewer than 3 ranks"):
            CostSampler(costs, costs, 3, 0, drop_last=True)
        return
    options = {"shuffle": shuffle, "drop_last": drop_last, "batch_size": 4}
    samplers = [CostSampler(costs, costs, 3, rank, **options) for rank in range(3)]
    parts = [list(sampler) for sampler in samplers]
    reference = DistributedSampler(costs, 3, 0, drop_last=drop_last)
    assert {len(part) for part in parts} == {len(samplers[0])} == {len(reference)}
    every = sorted(i for part in parts for i in part)
    assert len(every) == reference.total_size
    assert len(set(every)) == (count if not drop_last else len(every))


def test_epochs_have_other_orders_and_seeds_repeat_them():
    first = CostSampler(SIZES, SIZES, 2, 1, seed=5, batch_size=4)
    order = list(first)
    assert order == list(first)
    first.set_epoch(1)
    assert list(first) != order
    first.set_epoch(0)
    assert list(first) == order == list(CostSampler(SIZES, SIZES, 2, 1, seed=5, batch_size=4))


def test_batches_of_a_loader_are_the_steps():
    sampler = CostSampler(SIZES, SIZES, 2, 1, batch_size=16)
    batches = list(DataLoader(list(range(len(SIZES))), batch_size=16, sampler=sampler))
    for batch, step in zip(batches, sampler.steps(), strict=True):
        assert batch.tolist() == step[1].tolist()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(200, 8), nn.Linear(16, 8)

    def forward(self, tree):
        state = self.embed(wf.tensor(hash(tree[0]) % 200))
        for child in tree[1:]:
            state = self.cell(wf.cat([state, self(child)])).tanh()
        return state


def test_costs_are_recorded_from_the_graph():
    net = Net()
    cost = RecordedCost(net, unpack=False)
    nodes, flops, size_in_bytes = cost(TREES[0])
    assert nodes >= 3 * (SIZES[0] - 1)
    assert flops >= 2 * 16 * 8 * (SIZES[0] - 1)
    assert size_in_bytes >= 4 * 8 * SIZES[0]
    few = [tree for tree in TREES if size(tree) < 60][:80]
    exact = CostSampler(few, cost, 2, 0)
    assert exact.features[0].tolist() == list(cost(few[0]))
    # Most are predicted by their parts, after some were recorded.
    predicted = CostSampler(few, cost, 2, 0, sample=20)
    assert np.median(np.abs(predicted.features[:, 0] / exact.features[:, 0] - 1)) < 0.05
    assert predicted.waiting(exact.costs) < 0.05


def test_the_parts_of_an_example_are_its_cost_by_default():
    assert structure_of((1, [2, (3, "ab")], {"x": wf.ones(2, 3)})) == (4, 5, 6)
    sampler = CostSampler(TREES, None, 2, 0, batch_size=16)
    assert sampler.waiting(SIZES) < 0.05


def test_it_learns_from_measured_seconds():
    lengths = np.random.default_rng(1).integers(1, 100, 512)
    # Costs grow with the square: told both numbers, it does not know which one matters.
    sampler = CostSampler(lengths, [(n, n * n) for n in lengths.tolist()], 1, 0, batch_size=8)
    seconds = 1e-6 * lengths**2
    for step in sampler.steps():
        sampler.observe(float(seconds[step[0]].sum()))
    sampler.set_epoch(1)
    np.testing.assert_allclose(sampler.coefficients, [0, 1e-6], rtol=1e-3, atol=2e-8)


@pytest.mark.parametrize(("cost", "message"), [
    ([1, 2], "2 costs were given for 3 examples"), ([1, -2, 3], "negative"), ([1, float("nan"), 2], "not a number"),
    (lambda x: "much", "must be a number"),
])  # fmt: skip
def test_costs_that_are_none(cost, message):
    with pytest.raises((ValueError, TypeError), match=message):
        CostSampler([1, 2, 3], cost, 2, 0)


def test_an_empty_dataset_has_no_step():
    for cost in (None, [], lambda example: 1.0):
        assert list(CostSampler([], cost, num_replicas=2, rank=0)) == []


@pytest.mark.parametrize("cost, words", [
    ([1, 2, "a"], "the cost of an example must be a number, or several, not 'a'"),
    (5, "cost must be a list of numbers, one for each example, or a function of an example, not 5"),
    ("abc", "cost must be a list of numbers, .* not 'abc'"),
    ([1, [2, 3], 4], "the cost of example 1 is 2 numbers, that of example 0 is 1"),
    (lambda example: [1] * (example + 1), "the cost of example 1 is 2 numbers, that of example 0 is 1"),
    ([[], [], []], "the cost of example 0 is 0 numbers"),
    ([1j, 2, 3], "the cost of an example must be a number"),
    ([None] * 3, "the cost of an example must be a number"),
    (wf.tensor(3.0), "cost must be a list of numbers"),
])  # fmt: skip
def test_bad_costs_are_named(cost, words):
    with pytest.raises((ValueError, TypeError), match=f"CostSampler: {words}"):
        CostSampler(range(3), cost, num_replicas=2, rank=0)
