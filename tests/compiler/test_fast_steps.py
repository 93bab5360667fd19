"""Fast paths of training steps and of branches on values: whole paths in one native call, nothing done by halves."""

import pytest

import wayfare as wf
from tests.compiler.checks import equal, numbers
from wayfare import nn
from wayfare.codegen.runtime.command_tree import CommandTree
from wayfare.core.counters import counted
from wayfare.nn import functional as F

pytestmark = [pytest.mark.usefixtures("unchecked"), pytest.mark.filterwarnings("error:compile. ")]


class Twin:
    """The same model and optimiser twice: one trains compiled, one as plain Python."""

    def __init__(self, kind="Adam", classes=3, first=False, loss=None, **how):
        self.models, self.optimizers, self.steps = [], [], []
        for compiled in (True, False):
            wf.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, classes)).double()
            optimizer = getattr(wf.optim, kind)(model.parameters(), lr=0.05, **how)
            step = self._step(model, optimizer, first, loss or (lambda model, x, y: F.cross_entropy(model(x), y)))
            self.models.append(model)
            self.optimizers.append(optimizer)
            self.steps.append(wf.compile(step) if compiled else step)

    @staticmethod
    def _step(model, optimizer, first, loss_of):
        def step(x, y):
            if first:
                optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad()
            return loss

        return step

    def train(self, *batch):
        equal(*[step(*batch).detach() for step in self.steps])
        self.compare()

    def compare(self):
        for mine, theirs in zip(*[model.parameters() for model in self.models], strict=True):
            equal(mine.detach(), theirs.detach())
            equal(mine.grad, theirs.grad)
        left, right = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
        equal(left, right)


def batch(seed):
    return numbers(5, 4, seed=seed), wf.tensor([0, 2, 1, 1, seed % 3])


@pytest.mark.parametrize("kind, how", [
    ("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {"amsgrad": True}), ("RMSprop", {}),
])  # fmt: skip
@pytest.mark.parametrize("first", [True, False], ids=["zero_grad first", "zero_grad last"])
def test_a_training_step_is_one_native_call(kind, how, first, taken):
    twin = Twin(kind, first=first, **how)
    for seed in range(6):
        twin.train(*batch(seed))
    before = taken[0]
    for seed in range(6, 12):
        with counted() as count:
            twin.steps[0](*batch(seed))
        assert count.lists_run == 1
        twin.steps[1](*batch(seed))
        twin.compare()
    assert taken[0] == before + 6


def test_gradients_that_add_up(taken):
    """The gradients of two steps are added: the second reads the first."""
    models = []
    for compiled in (True, False):
        wf.manual_seed(0)
        model = nn.Linear(4, 3).double()

        def step(x, y, model=model):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        models.append((model, wf.compile(step) if compiled else step))
    for seed in range(10):
        for _, step in models:
            step(*batch(seed))
        (mine, _), (theirs, _) = models
        equal(mine.weight.grad, theirs.weight.grad)
        equal(mine.bias.grad, theirs.bias.grad)
    assert taken[0] > 4


def test_a_wrong_class_is_told_and_changes_nothing(taken):
    twin = Twin()
    for seed in range(6):
        twin.train(*batch(seed))
    for wrong in (3, -1, 1 << 40):
        x, y = batch(6)
        y[1] = wrong
        for step in twin.steps:
            with pytest.raises(wf.errors.IndexRangeError, match="out of range for 3 classes at \\[1\\]"):
                step(x, y)
        for optimizer in twin.optimizers:
            optimizer.zero_grad()
        twin.compare()
    before = taken[0]
    twin.train(*batch(7))
    assert taken[0] == before + 1


def test_an_ignored_class_is_none(taken):
    twin = Twin()
    for seed in range(6):
        x, y = batch(seed)
        y[2] = -100
        twin.train(x, y)
    assert taken[0] > 2


def test_options_and_states_of_the_optimiser_are_followed(taken):
    twin = Twin()
    for seed in range(6):
        twin.train(*batch(seed))
    for optimizer in twin.optimizers:
        optimizer.param_groups[0]["lr"] = 0.5
    before = taken[0]
    twin.train(*batch(7))
    assert taken[0] == before + 1
    for optimizer in twin.optimizers:
        optimizer.param_groups[0]["weight_decay"] = 0.1  # another formula
    twin.train(*batch(8))
    for optimizer, model in zip(twin.optimizers, twin.models, strict=True):
        optimizer.state[model[0].weight]["step"] = 40
    for seed in range(9, 14):
        twin.train(*batch(seed))


def test_weights_that_moved(taken):
    twin = Twin()
    for seed in range(6):
        twin.train(*batch(seed))
    for model in twin.models:
        model[0].weight.data = model[0].weight.detach() * 2
    for seed in range(6, 10):
        twin.train(*batch(seed))
    before = taken[0]
    twin.train(*batch(11))
    assert taken[0] == before + 1


def test_a_gradient_from_elsewhere_is_seen():
    """A fast path that takes `.grad` to be None must not run where it is not."""
    twin = Twin()
    for seed in range(6):
        twin.train(*batch(seed))
    for model in twin.models:
        model[0].weight.grad = wf.ones(6, 4).double()
    for seed in range(6, 10):
        twin.train(*batch(seed))


# -- branches --------------------------------------------------------------------------------------------------------


def halving(x):
    """A loop and a branch on values."""
    turns = 0
    while x.abs().sum() > 1 and turns < 20:
        x = x / 2
        turns += 1
    return (x + turns) if x.sum() > 0 else (x - turns)


def test_branches_on_values_are_one_native_call(taken):
    compiled = wf.compile(halving)
    inputs = [numbers(5, seed=seed) * scale for seed in range(3) for scale in (0.01, 1, 3, 9, 40)]
    for _ in range(8):
        for x in inputs:
            equal(compiled(x), halving(x))
    before = taken[0]
    with counted() as count:
        made = [compiled(x) for x in inputs]
    for x, y in zip(inputs, made, strict=True):
        equal(y, halving(x))
    assert taken[0] == before + len(inputs) and count.lists_run == len(inputs)


def test_an_outcome_that_was_never_seen_grows_the_tree(taken):
    compiled = wf.compile(halving)
    for _ in range(6):
        for scale in (0.01, 1):
            equal(compiled(numbers(5) * scale), halving(numbers(5) * scale))
    for scale in (4, 16, 64, -64, 300):
        for _ in range(8):
            x = numbers(5, seed=1) * scale
            before = taken[0]
            equal(compiled(x), halving(x))
    assert taken[0] == before + 1


@pytest.mark.parametrize("dtype", [wf.float32, wf.float64, wf.int64])
def test_numbers_that_are_read_decide(dtype, taken):
    def function(x):
        steps = {2: x * 3, 3: x + 5}.get(x.max().item())
        return x if steps is None else steps * 2

    compiled = wf.compile(function)
    for _ in range(8):
        for most in (2, 3, 1):
            x = wf.tensor([0, 1, most]).to(dtype)
            equal(compiled(x), function(x))
    assert taken[0] >= 9


def test_training_with_branches(taken):
    def loss_of(model, x, y):
        scores = model(x)
        while scores.abs().max() > 0.4:
            scores = scores * 0.7
        loss = F.cross_entropy(scores, y)
        return loss * 2 if scores.sum() > 0 else loss

    twin = Twin(loss=loss_of)
    for _ in range(12):
        for seed in range(4):
            before = taken[0]
            twin.train(*batch(seed))
    assert taken[0] == before + 1
    x, y = batch(0)
    y[0] = 7
    for step in twin.steps:
        with pytest.raises(wf.errors.IndexRangeError):
            step(x, y)
    for optimizer in twin.optimizers:
        optimizer.zero_grad()
    twin.compare()


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_a_finaliser_that_calls_the_step_in_the_middle_of_a_step(kind, taken, monkeypatch):
    """The collector may run between the native calls of a step: what the first one left for the second is not lost."""

    def loss_of(model, x, y):
        scores = model(x)
        return F.cross_entropy(scores * 2 if scores.sum() > 0 else scores, y)

    meanwhile, run = [], CommandTree.run

    def interrupted(tree, objects, start):
        code = run(tree, objects, start)
        if meanwhile:
            meanwhile.pop()()
        return code

    monkeypatch.setattr(CommandTree, "run", interrupted)
    twin = Twin(kind, loss=loss_of)
    for optimizer in twin.optimizers:
        optimizer.param_groups[0]["lr"] = 0.0
    compiled, plain = twin.steps
    batches = [batch(seed) for seed in range(6)]
    for _ in range(8):
        wanted = [plain(*b).detach() for b in batches]
        for b, loss in zip(batches, wanted, strict=True):
            equal(compiled(*b).detach(), loss)
    for b, loss in zip(batches, wanted, strict=True):
        for other, second in zip(batches, wanted, strict=True):
            inner = []
            meanwhile.append(lambda other=other, inner=inner: inner.append(compiled(*other).detach()))
            before = taken[0]
            equal(compiled(*b).detach(), loss)
            assert taken[0] == before + 1 and not meanwhile
            equal(inner[0], second)


def test_results_of_one_path_are_not_those_of_another(taken):
    def function(x):
        y = x.tanh()
        return (y, y * 2) if x.sum() > 0 else (y - 1, y)

    compiled = wf.compile(function)
    inputs = [numbers(5, seed=seed) + shift for seed in range(4) for shift in (-2, 2)]
    for _ in range(6):
        made = [compiled(x) for x in inputs]
    for x, y in zip(inputs, made, strict=True):
        equal(y, function(x))
    assert taken[0] > len(inputs)


def test_gradients_through_a_branch(taken):
    def function(x, w):
        y = x @ w
        return y.sin() if y.sum() > 0 else y.exp()

    compiled = wf.compile(function)
    w = numbers(3, 3).requires_grad_()
    for _ in range(8):
        for seed in range(4):
            x = numbers(2, 3, seed=seed)
            found = []
            for way in (compiled, function):
                (grad,) = wf.autograd.grad(way(x, w).sum(), [w])
                found.append(grad)
            equal(*found)
    assert taken[0] > 8


def test_visits_are_counted_along_the_path():
    compiled = wf.compile(halving)
    x = numbers(5)
    for _ in range(12):
        compiled(x)
    (entries,) = compiled._cache.entries.values()
    blocks = entries[0].tree.walk()
    assert {block.visits for block in blocks} == {11}
