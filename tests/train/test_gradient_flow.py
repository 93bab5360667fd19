"""GradientFlow keeps the norms of gradients in the history, through log files and checkpoints."""

import math

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.train import GradientFlow, History, fit


@pytest.fixture
def task():
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    batches = [(wf.randn(8, 3), wf.randn(8, 1)) for _ in range(4)]
    return model, batches


def run(task, **options):
    model, batches = task
    options.setdefault("callbacks", [GradientFlow()])
    return fit(model, batches, optimizer=wf.optim.SGD(model.parameters(), lr=0.01), loss=nn.functional.mse_loss,
               progress=False, **options)  # fmt: skip


def test_norms_are_the_mean_of_an_epoch(task):
    model, batches = task
    expected = []
    for x, y in batches:
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        expected.append(model[0].weight.grad.norm().item())
        with wf.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
    wf.manual_seed(0)
    task = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), batches
    history = run(task, epochs=2)
    norms = history.gradient_norms()
    assert list(norms) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert all(len(values) == 2 for values in norms.values())
    assert norms["0.weight"][0] == pytest.approx(sum(expected) / 4, rel=1e-5)


def test_they_are_no_scores(task):
    history = run(task)
    assert history.scores() == ["loss"]
    assert "gradient norms" in history.names()
    assert "gradient" not in history.table()


def test_every_and_parameters_without_gradient(task):
    model, _ = task
    model.register_module("idle", nn.Linear(2, 2))
    model.forward = lambda x: model[2](model[1](model[0](x)))
    looked = []
    norm = wf.Tensor.norm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wf.Tensor, "norm", lambda self, *a, **k: looked.append(1) or norm(self, *a, **k))
        history = run(task, callbacks=[GradientFlow(every=2)])
    assert len(looked) == 2 * 4
    assert history.gradient_norms()["idle.weight"] == [0.0]


def test_they_go_through_files(task, tmp_path):
    history = run(task, epochs=2, log=tmp_path / "log.jsonl", checkpoint=tmp_path / "run")
    assert History.load(tmp_path / "log.jsonl").gradient_norms() == history.gradient_norms()
    resumed = run(task, epochs=3, checkpoint=tmp_path / "run", resume=True)
    assert resumed.gradient_norms()["0.weight"][:2] == history.gradient_norms()["0.weight"]
    assert len(resumed.gradient_norms()["0.weight"]) == 3


def test_what_is_no_number_is_read_back(tmp_path):
    History([{"epoch": 1, "gradient norms": {"a": math.inf, "b": math.nan, "c": 1.0}}]).save(tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert '"inf"' in text and '"nan"' in text and "NaN" not in text
    found = History.load(tmp_path / "log").gradient_norms()
    assert found["a"] == [math.inf] and math.isnan(found["b"][0]) and found["c"] == [1.0]


def test_mistakes(task):
    with pytest.raises(ValueError, match="GradientFlow: every must be a whole number from 1, it is 0"):
        GradientFlow(every=0)
    with pytest.raises(ValueError, match="a metric cannot be called 'gradient norms'"):
        run(task, metrics={"gradient norms": wf.metrics.MeanSquaredError()})
