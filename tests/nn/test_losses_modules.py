"""Losses as modules: their formulas, what is one loop, and what a user reads when something does not fit."""

import math
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.counters import counted

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 4))
P, T = RNG.uniform(0.1, 0.9, (5, 4)), RNG.uniform(0.1, 0.9, (5, 4))
SIGNS = np.where(RNG.random((5, 4)) < 0.5, -1.0, 1.0)
CLASSES = np.array([0, 3, 1, 1, 2])
ERROR = np.abs(X - Y)
LOG = X - np.log(np.exp(X).sum(1, keepdims=True))
ROWS = np.arange(5)


def cosine(a, b):
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


OTHERS = np.where(np.arange(4) != CLASSES[:, None], np.maximum(1 - X[ROWS, CLASSES][:, None] + X, 0), 0).sum(1) / 4
# (loss, inputs, the losses one by one)
FORMULAS = [
    (nn.L1Loss, {}, (X, Y), ERROR), (nn.MSELoss, {}, (X, Y), ERROR**2),
    (nn.SmoothL1Loss, {"beta": 0.5}, (X, Y), np.where(ERROR < 0.5, ERROR**2, ERROR - 0.25)),
    (nn.HuberLoss, {"delta": 0.5}, (X, Y), np.where(ERROR < 0.5, ERROR**2 / 2, 0.5 * (ERROR - 0.25))),
    (nn.KLDivLoss, {}, (np.log(P), T), T * (np.log(T) - np.log(P))),
    (nn.PoissonNLLLoss, {}, (X, T), np.exp(X) - T * X),
    (nn.GaussianNLLLoss, {}, (X, Y, P), (np.log(P) + ERROR**2 / P) / 2),
    (nn.BCELoss, {}, (P, T), -T * np.log(P) - (1 - T) * np.log(1 - P)),
    (nn.BCEWithLogitsLoss, {}, (X, T), np.log1p(np.exp(-X)) + (1 - T) * X),
    (nn.SoftMarginLoss, {}, (X, SIGNS), np.log1p(np.exp(-SIGNS * X))),
    (nn.HingeEmbeddingLoss, {}, (X, SIGNS), np.where(SIGNS == 1, X, np.maximum(1 - X, 0))),
    (nn.MarginRankingLoss, {"margin": 0.1}, (X, Y, SIGNS), np.maximum(-SIGNS * (X - Y) + 0.1, 0)),
    (nn.CosineEmbeddingLoss, {}, (X, Y, SIGNS[:, 0]),
     np.where(SIGNS[:, 0] == 1, 1 - cosine(X, Y), np.maximum(cosine(X, Y), 0))),
    (nn.CrossEntropyLoss, {}, (X, CLASSES), -LOG[ROWS, CLASSES]),
    (nn.CrossEntropyLoss, {}, (X, T), -(LOG * T).sum(1)),
    (nn.CrossEntropyLoss, {"label_smoothing": 0.2}, (X, CLASSES), -0.8 * LOG[ROWS, CLASSES] - 0.05 * LOG.sum(1)),
    (nn.NLLLoss, {}, (LOG, CLASSES), -LOG[ROWS, CLASSES]),
    (nn.MultiMarginLoss, {}, (X, CLASSES), OTHERS),
    (nn.MultiLabelSoftMarginLoss, {}, (X, T), (np.log1p(np.exp(-X)) + (1 - T) * X).mean(1)),
    (nn.TripletMarginLoss, {"eps": 0.0}, (X, Y, P),
     np.maximum(np.sqrt(((X - Y) ** 2).sum(1)) - np.sqrt(((X - P) ** 2).sum(1)) + 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FORMULAS)))
def test_formulas(number):
    make, settings, inputs, losses = FORMULAS[number]
    tensors = [wf.tensor(x) for x in inputs]
    for reduction, wanted in (("none", losses), ("mean", losses.mean()), ("sum", losses.sum())):
        np.testing.assert_allclose(make(reduction=reduction, **settings)(*tensors).numpy(), wanted, 1e-7, 1e-7)


def test_ignored_classes_and_weights():
    weight = np.array([1.0, 2.0, 0.5, 3.0])
    target = np.array([0, 3, -100, 1, -100])
    seen = target >= 0
    chosen = -LOG[ROWS[seen], target[seen]] * weight[target[seen]]
    loss = nn.CrossEntropyLoss(weight=wf.tensor(weight))
    assert loss(wf.tensor(X), wf.tensor(target)).item() == pytest.approx(chosen.sum() / weight[target[seen]].sum())
    assert list(loss.state_dict()) == ["weight"] and not list(loss.parameters())
    assert nn.CrossEntropyLoss().state_dict() == {}
    assert loss.float().weight.dtype is wf.float32
    assert math.isnan(nn.CrossEntropyLoss()(wf.ones(2, 3), wf.tensor([-100, -100])).item())


def test_one_loop_each_way():
    """The sum of a large array is two calls: parts of it, and the sum of those."""
    rng = np.random.default_rng(0)
    x, y = (wf.tensor(rng.normal(size=(64, 1024)), dtype=wf.float32) for _ in range(2))
    chances = wf.rand(64, 1024) * 0.9 + 0.05
    signs = (y > 0).float() * 2 - 1
    weight = wf.rand(1024)
    cases = [
        (nn.L1Loss(), (y,)), (nn.MSELoss(), (y,)), (nn.SmoothL1Loss(), (y,)), (nn.HuberLoss(), (y,)),
        (nn.KLDivLoss(), (chances,)), (nn.KLDivLoss(log_target=True), (y,)), (nn.PoissonNLLLoss(), (chances,)),
        (nn.BCEWithLogitsLoss(), (chances,)), (nn.BCEWithLogitsLoss(weight, pos_weight=weight), (chances,)),
        (nn.SoftMarginLoss(), (signs,)), (nn.HingeEmbeddingLoss(), (signs,)), (nn.MarginRankingLoss(0.5), (y, signs)),
        (nn.CosineEmbeddingLoss(), (y, signs[:, 0])), (nn.MultiLabelSoftMarginLoss(), (chances,)),
        (nn.CrossEntropyLoss(), (chances,)),
    ]  # fmt: skip
    for loss, others in cases:
        def run(loss=loss, others=others):
            given = x.detach().requires_grad_()
            with counted() as forward:
                out = loss(given, *others)
            with counted() as backward:
                out.backward()
            return forward.kernels_run, backward.kernels_run

        run()
        forward, backward = run()
        assert forward <= 2 and backward == 1, (loss, forward, backward)


def test_errors_are_sentences():
    x = wf.zeros(2, 3)
    loss = nn.CrossEntropyLoss()
    for bad, error, words in (
        (wf.tensor([0, 7]), IndexError, r"class 7 is out of range for 3 classes at \[1\] of the target"),
        (wf.tensor([-1, -2]), IndexError, r"class -1 is out of range for 3 classes at \[0\] .* \(and 1 more\)"),
        (wf.tensor([0.0, 1.0]), RuntimeError, r"target classes must be integers, not f32\[2\]"),
        (wf.tensor([0, 1, 2]), ValueError, r"scores f32\[2,3\] and target i64\[3\] have different batches"),
        (wf.zeros(2, 4), RuntimeError, r"need a target of shape \[2\], not f32\[2,4\]"),
    ):
        with pytest.raises(error, match=words + r".*in CrossEntropyLoss\(\)"):
            loss(x, bad)
    with pytest.raises(IndexError, match=r"class 5 is out of range for 3 classes at \[1, 0\] of the target"):
        loss(wf.zeros(2, 3, 2), wf.tensor([[0, 1], [5, 2]]))
    weighted = nn.CrossEntropyLoss(weight=wf.ones(3))
    with pytest.raises(IndexError, match=r"cross_entropy: class 9 is out of range for 3 classes at \[0\]"):
        weighted(x, wf.tensor([9, 0]))
    for other, target, words in (
        (nn.MultiMarginLoss(), wf.tensor([0, 5]), r"multi_margin_loss: class 5 is out of range for 3 classes at \[1\]"),
        (nn.MultiLabelMarginLoss(), wf.tensor([[0, -1, 9], [1, 7, -1]]), r"class 7 is out of .* 3 classes at \[1, 1\]"),
    ):
        with pytest.raises(RuntimeError, match=words):
            other(x, target)
    with pytest.raises(RuntimeError, match="label 9, number 1 of target 0, is out of range for 4 classes"):
        nn.CTCLoss()(wf.zeros(3, 2, 4), wf.tensor([[1, 9], [1, 1]]), [3, 3], [2, 2])
    with pytest.raises(ValueError, match=r"input f32\[2,3\] and target f32\[3,2\] differ in shape"):
        nn.BCEWithLogitsLoss()(x, wf.zeros(3, 2))
    with pytest.raises(RuntimeError, match=r"reach from 1\.5 to 1\.5.*with_logits"):
        nn.BCELoss()(x + 1.5, x)
    with pytest.raises(RuntimeError, match=r"mse_loss.*\[2, ?3\].*\[4, ?3\]"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.MSELoss()(x, wf.zeros(4, 3))
    with pytest.warns(UserWarning, match=r"input \[2, 3\] and target \[2, 1\] differ in shape and are broadcast"):
        nn.L1Loss()(x, wf.zeros(2, 1))
    for make, words in (
        (lambda: nn.MSELoss(reduction="average"), "MSELoss: 'average' is not a reduction"),
        (lambda: nn.MultiMarginLoss(p=3), "p must be 1 or 2, it is 3"),
        (lambda: nn.MultiMarginLoss(weight=wf.ones(2, 2)), "one number for each class"),
        (lambda: nn.TripletMarginLoss(margin=0), "margin must be positive, it is 0"),
        (lambda: nn.GaussianNLLLoss(eps=0), "eps must be positive, it is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_a_distance_of_ones_own():
    loss = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1), margin=0.5)
    wanted = np.maximum(np.abs(X - Y).sum(1) - np.abs(X - P).sum(1) + 0.5, 0).mean()
    assert loss(*map(wf.tensor, (X, Y, P))).item() == pytest.approx(wanted)
    assert "PairwiseDistance" in repr(nn.TripletMarginWithDistanceLoss())


def test_ctc_of_one_step_is_the_chance_of_its_label():
    log = wf.tensor(LOG[:1][None].transpose(1, 0, 2))  # one step, one sequence, four classes
    loss = nn.CTCLoss()(log, wf.tensor([[2]]), wf.tensor([1]), wf.tensor([1]))
    assert loss.item() == pytest.approx(-LOG[0, 2])
    two = wf.tensor([[1, 1]])
    assert nn.CTCLoss()(log, two, [1], [2]).item() == math.inf
    assert nn.CTCLoss(zero_infinity=True)(log, two, [1], [2]).item() == 0


LOSSES = [kind for kind in vars(nn).values() if isinstance(kind, type) and kind.__name__.endswith("Loss")]


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_made_of_an_output_and_a_target_says_how(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in (wf.tensor(CLASSES), wf.tensor(1)):
            with pytest.raises(TypeError, match=rf"Make the loss first: nn\.{kind.__name__}\(\)\(\w+, \w+"):
                kind(wf.tensor(X), target)
        kind()


@pytest.mark.parametrize("make", [nn.L1Loss, nn.CrossEntropyLoss, nn.HingeEmbeddingLoss])
def test_an_old_option_is_warned_of_at_the_line_that_gives_it(make):
    with pytest.warns(UserWarning, match="deprecated, use reduction=") as caught:
        make(size_average=False)
    assert caught[0].filename == __file__


def test_tensors_that_are_options_are_taken():
    assert len(LOSSES) == 21
    weight = wf.ones(4)
    assert nn.CrossEntropyLoss(weight).weight is weight and nn.MultiMarginLoss(1, 1.0, weight).weight is weight
    assert nn.BCEWithLogitsLoss(weight, None, None, "mean", weight).pos_weight is weight
    assert nn.HingeEmbeddingLoss(wf.tensor(2.0)).margin.item() == 2
    with pytest.raises(TypeError, match=r"nn\.CrossEntropyLoss\(\)\(output, target\)"):
        nn.CrossEntropyLoss(wf.tensor(X), wf.tensor(CLASSES))
    with pytest.raises(TypeError, match=r"nn\.TripletMarginLoss\(\)\(anchor, positive, negative\)"):
        nn.TripletMarginLoss(weight, weight, weight)

    class Mine(nn.MSELoss):
        def __init__(self, low, high):
            super().__init__()
            self.low, self.high = low, high

    assert Mine(weight, wf.zeros(4)).low is weight
