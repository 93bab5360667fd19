"""Whole training steps compiled: twelve of them leave model, optimiser and schedule as twelve plain ones do."""

from contextlib import nullcontext

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.nn import functional as F

STEPS = 12
# All of it is replayed from a plan.
pytestmark = [pytest.mark.filterwarnings("error:compile. "), pytest.mark.usefixtures("unchecked")]


# -- models: each with batches for twelve steps, and a loss ----------------------------------------------------------


class Perceptron(nn.Sequential):
    """Three layers."""

    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)

    @staticmethod
    def batch(rng, dtype):
        return numbers(rng, dtype, 8, 6), wf.from_numpy(rng.integers(0, 4, 8))


class Pictures(nn.Module):
    """Convolutions with batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.second, self.drop, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.3), nn.Linear(36, 3)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head(self.drop(self.second(x).relu().flatten(1)))

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y, label_smoothing=0.1)

    @staticmethod
    def batch(rng, dtype):
        return numbers(rng, dtype, 5, 1, 8, 8), wf.from_numpy(rng.integers(0, 3, 5))


class Block(nn.Module):
    """A transformer block over embedded words."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11)

    def forward(self, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.norm(self.layer(self.embed(words), src_mask=mask, is_causal=True)))

    def loss(self, batch):
        (words,) = batch
        return F.cross_entropy(self(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    @staticmethod
    def batch(rng, dtype):
        return (wf.from_numpy(rng.integers(0, 11, (3, 6))),)


class Loop(nn.Module):
    """An LSTM as a Python loop over sequences of changing length."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 8), nn.Linear(8, 1)

    def loss(self, batch):
        x, y = batch
        state = None
        for t in range(x.shape[0]):
            state = self.cell(x[t], state)
        return F.mse_loss(self.head(state[0]).squeeze(-1), y)

    @staticmethod
    def batch(rng, dtype):
        return numbers(rng, dtype, int(rng.integers(3, 6)), 5, 4), numbers(rng, dtype, 5)


class Tree(nn.Module):
    """Recursion over nested tuples of numbers."""

    def __init__(self):
        super().__init__()
        self.leaf, self.node, self.head = nn.Linear(1, 6), nn.Linear(12, 6), nn.Linear(6, 1)

    def state(self, tree):
        if isinstance(tree, tuple):
            return self.node(wf.cat([self.state(part) for part in tree])).tanh()
        return self.leaf(wf.full((1,), tree, dtype=self.head.weight.dtype)).tanh()

    def loss(self, batch):
        tree, y = batch
        return (self.head(self.state(tree)) - y).square().sum()

    @staticmethod
    def batch(rng, dtype):
        trees = (((0.5, 1.0), -0.5), (0.25, (1.0, (-1.0, 0.5))))
        return trees[int(rng.integers(0, 2))], numbers(rng, dtype, 1)


class Adaptive(nn.Module):
    """As many rounds as a value asks for, and a branch on another."""

    def __init__(self):
        super().__init__()
        self.step, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def loss(self, batch):
        x, y = batch
        rounds = 0
        while x.abs().mean() > 0.3 and rounds < 6:
            x = self.step(x).tanh() * 0.9
            rounds += 1
        head = self.left if x[0, 0] > 0 else self.right
        return F.mse_loss(head(x), y)

    @staticmethod
    def batch(rng, dtype):
        return numbers(rng, dtype, 4, 6), numbers(rng, dtype, 4, 2)


MODELS = (Perceptron, Pictures, Block, Loop, Tree, Adaptive)


def numbers(rng, dtype, *shape):
    return wf.from_numpy(rng.standard_normal(shape).astype(dtype))


# -- optimisers, schedules, and ways of writing the step ---------------------------------------------------------------

OPTIMIZERS = {
    "SGD": lambda p: wf.optim.SGD(p, lr=0.05),
    "SGD momentum": lambda p: wf.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: wf.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: wf.optim.AdamW(p, lr=0.01, weight_decay=0.1, amsgrad=True),
}
OTHER_OPTIMIZERS = {
    "RMSprop": lambda p: wf.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: wf.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: wf.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: wf.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: wf.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: wf.optim.RAdam(p, lr=0.02),
    "LBFGS": lambda p: wf.optim.LBFGS(p, lr=0.1, max_iter=3),
}


class Going:
    """A model in training: what a step may use."""

    def __init__(self, kind, optimizer, dtype):
        wf.manual_seed(5)
        self.model = kind().to(getattr(wf, dtype))
        self.optimizer = optimizer(list(self.model.parameters()))
        self.schedule = wf.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.7)


def captured(step, going, way):
    """The step with its model captured in a closure."""
    return way(lambda batch, number: step(going, batch, number))


def handed(step, going, way):
    """The step with its model handed to it as an argument."""
    compiled = way(step)
    return lambda batch, number: compiled(going, batch, number)


def trained(kind, optimizer, step, dtype, way, how):
    """Twelve steps; the losses, and everything that is left behind."""
    going = Going(kind, optimizer, dtype)
    run, rng = how(step, going, way), np.random.default_rng(6)
    # A number that is new at each call would make each call one of a kind.
    losses = [run(kind.batch(rng, dtype), number % 2) for number in range(STEPS)]
    state = going.optimizer.state_dict()
    return {
        "losses": [x.item() if isinstance(x, wf.Tensor) else x for x in losses],
        "model": {key: value.numpy() for key, value in going.model.state_dict().items()},
        "gradients": [None if p.grad is None else p.grad.numpy() for p in going.model.parameters()],
        "optimizer": [
            value.numpy() if isinstance(value, wf.Tensor) else value
            for entry in state["state"].values() for value in entry.values() if not isinstance(value, list)
        ],
        "rates": [group["lr"] for group in state["param_groups"]], "last": going.schedule.last_epoch,
        "generator": wf.get_rng_state().numpy(),
    }  # fmt: skip


def zero_first(going, batch, number):
    going.optimizer.zero_grad()
    loss = going.model.loss(batch)
    loss.backward()
    going.optimizer.step()
    return loss


def zero_last(going, batch, number):
    loss = going.model.loss(batch)
    loss.backward()
    going.optimizer.step()
    going.optimizer.zero_grad()
    return loss.detach()


def zero_in_place(going, batch, number):
    going.optimizer.zero_grad(set_to_none=False)
    loss = going.model.loss(batch)
    loss.backward()
    going.optimizer.step()
    return loss


def clipped_and_scheduled(going, batch, number):
    going.optimizer.zero_grad()
    loss = going.model.loss(batch)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(going.model.parameters(), 0.5)
    going.optimizer.step()
    going.schedule.step()
    return loss + 0 * norm


def clipped_by_value(going, batch, number):
    going.model.zero_grad()
    loss = going.model.loss(batch)
    loss.backward()
    nn.utils.clip_grad_value_(going.model.parameters(), 0.05)
    going.optimizer.step()
    return loss


def accumulated(going, batch, number):
    loss = going.model.loss(batch) / 2
    loss.backward()
    if number:
        going.optimizer.step()
        going.optimizer.zero_grad()
        going.schedule.step()
    return loss


def watched(going, batch, number):
    """Python looks at the loss before it steps."""
    going.optimizer.zero_grad()
    loss = going.model.loss(batch)
    loss.backward()
    if loss.item() > 0.05 and bool(wf.isfinite(loss)):
        going.optimizer.step()
    return loss.item()


def noisy(going, batch, number):
    """Weights are disturbed by hand after the step."""
    loss = zero_first(going, batch, number)
    with wf.no_grad():
        for p in going.model.parameters():
            p.add_(wf.randn_like(p), alpha=1e-3).clamp_(-2, 2)
    return loss


def with_penalty(going, batch, number):
    """The gradient's norm is part of the loss: a backward pass through a backward pass."""
    going.optimizer.zero_grad()
    loss = going.model.loss(batch)
    grads = wf.autograd.grad(loss, list(going.model.parameters()), create_graph=True, allow_unused=True)
    loss = loss + 0.1 * sum(g.square().sum() for g in grads if g is not None)
    loss.backward()
    going.optimizer.step()
    return loss


WAYS = (
    zero_first, zero_last, zero_in_place, clipped_and_scheduled, clipped_by_value, accumulated, watched, noisy,
    with_penalty,
)  # fmt: skip


def agree(got, want, dtype):
    """Everything left behind is alike."""
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    for key, theirs in want.items():
        mine = got[key]
        pairs = zip(mine.values(), theirs.values(), strict=True) if isinstance(theirs, dict) else zip(
            *((mine, theirs) if isinstance(theirs, list) else ([mine], [theirs])), strict=True)  # fmt: skip
        for a, b in pairs:
            assert (a is None) == (b is None), key
            if b is not None:
                assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype, key
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=key)


def check(kind, optimizer, step, dtype="float64", how=captured, replays=STEPS // 2):
    """Twelve compiled steps and twelve plain ones leave the same; at least so many were not recorded anew."""
    made = []

    def way(function):
        made.append(wf.compile(function))
        return made[-1]

    want = trained(kind, optimizer, step, dtype, lambda f: f, how)
    got = trained(kind, optimizer, step, dtype, way, how)
    agree(got, want, dtype)
    told = made[0].explain().data
    assert told["calls"] == STEPS
    # The other models do something else at nearly every call.
    if kind in (Perceptron, Pictures, Block):
        assert told["replayed"] >= replays, told


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", MODELS)
def test_every_model_with_every_optimizer(kind, optimizer):
    check(kind, OPTIMIZERS[optimizer], clipped_and_scheduled)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_model_comes_as_an_argument(kind, optimizer):
    check(kind, OPTIMIZERS[optimizer], clipped_and_scheduled, how=handed)


@pytest.mark.parametrize("kind", MODELS)
def test_single_precision(kind):
    check(kind, OPTIMIZERS["SGD momentum"], zero_first, "float32")


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", MODELS)
def test_every_way_of_writing_the_step(kind, way):
    # A loss that Python reads and returns is a new number each time.
    left = way is watched and kind not in (Loop, Tree, Adaptive)
    with pytest.warns(UserWarning, match="item") if left else nullcontext():
        check(kind, OPTIMIZERS["Adam"], way, replays=0 if way is watched else STEPS // 2)


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [Perceptron, Pictures, Adaptive])
def test_python_runs_along(kind, way):
    """The step keeps a list, so that Python must run at every call."""
    notes = []

    def step(going, batch, number):
        notes.append(number)
        loss = way(going, batch, number)
        notes.append(len(notes))
        return loss

    with pytest.warns(UserWarning, match="it changes what it depends on: closure `notes`"):
        check(kind, OPTIMIZERS["Adam"], step, replays=0)
    assert len(notes) == 4 * STEPS


@pytest.mark.parametrize("optimizer", [name for name in OTHER_OPTIMIZERS if name != "LBFGS"])
def test_the_other_optimizers(optimizer):
    check(Perceptron, OTHER_OPTIMIZERS[optimizer], clipped_and_scheduled)


def test_an_optimizer_that_calls_back():
    def step(going, batch, number):
        def closure():
            going.optimizer.zero_grad()
            loss = going.model.loss(batch)
            loss.backward()
            return loss

        return going.optimizer.step(closure)

    check(Perceptron, OPTIMIZERS["SGD"], step)
    with pytest.warns(UserWarning, match="LBFGS looks at the loss"):
        check(Perceptron, OTHER_OPTIMIZERS["LBFGS"], step, replays=0)


def test_a_step_over_captured_things_and_batches_as_two_arguments():
    results = []
    for way in (wf.compile, lambda f: f):
        wf.manual_seed(1)
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)).double()
        optimizer = wf.optim.Adam(model.parameters(), lr=0.02)

        @way
        def step(x, y, model=model, optimizer=optimizer):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        rng = np.random.default_rng(0)
        losses = []
        for size in (6, 6, 6, 3, 6, 3, 3, 6):
            x = numbers(rng, "float64", size, 5)
            losses.append(step(x, x.sum(1, keepdim=True)).item())
        results.append([losses, *(p.tolist() for p in model.parameters())])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("how", [captured, handed])
def test_what_changes_between_steps_is_seen(how):
    results = []
    for way in (wf.compile, lambda f: f):
        going, rng = Going(Perceptron, OPTIMIZERS["SGD momentum"], "float64"), np.random.default_rng(6)
        run = how(zero_first, going, way)
        for number in range(22):
            if number == 4:
                going.optimizer.param_groups[0]["lr"] = 0.5
            if number == 7:
                going.model[1] = nn.ReLU()
            if number == 10:
                going.model[0].weight.requires_grad_(False)
            if number == 13:
                going.optimizer.load_state_dict(going.optimizer.state_dict())
            if number == 16:
                going.model.load_state_dict({key: value * 0.5 for key, value in going.model.state_dict().items()})
            if number == 19:
                going.optimizer.param_groups[0]["momentum"] = 0.1
            run(Perceptron.batch(rng, "float64"), 0)
        results.append([p.detach().numpy() for p in going.model.parameters()])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
