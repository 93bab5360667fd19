"""A report leaves everything as it was: weights, statistics, gradients, modes, optimiser and random numbers."""

import copy
import random

import numpy as np
import pytest

import wayfare as wf
from tests.see.report.parts import a_task
from wayfare import nn


def state_of(model, optimizer, batch):
    return {
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "gradients": {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
        "identities": [id(p) for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._hooks.forward) if m._hooks is not None else 0 for m in model.modules()],
        "optimizer": {k: {n: v.tolist() if isinstance(v, wf.Tensor) else v for n, v in s.items()}
                      for k, s in enumerate(optimizer.state.values())},
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "batch": [t.tolist() for t in batch],
        "random": wf.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "mode": wf.is_grad_enabled(),
    }  # fmt: skip


@pytest.fixture
def used():
    """A model that has been trained for a step, one layer of it in eval mode, with gradients still there."""
    model, batch, loss = a_task()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
    model.dropout.eval()
    model.first.bias.grad = None
    return model, optimizer, batch, loss


def noisy(loss):
    """A loss that uses up random numbers of every kind."""

    def made(output, target):
        return loss(output + 0.01 * wf.randn(1) + 0.01 * random.random() + 0.01 * np.random.rand(), target)

    return made


@pytest.mark.parametrize("comparison", [False, True])
def test_nothing_of_the_model_is_changed(used, comparison):
    model, optimizer, batch, loss = used
    before = copy.deepcopy(state_of(model, optimizer, batch))
    wf.report(model, batch=batch, loss=noisy(loss) if not comparison else loss, optimizer=optimizer,
              comparison=comparison, path=None)  # fmt: skip
    after = state_of(model, optimizer, batch)
    for name, value in before.items():
        assert after[name] == value, name


def test_a_step_that_fails_leaves_everything_too(used):
    model, optimizer, batch, loss = used
    before = copy.deepcopy(state_of(model, optimizer, batch))
    calls = []

    def breaks(output, target):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third time")
        return loss(output, target)

    with pytest.raises(RuntimeError, match="the third time"):
        wf.report(model, batch=batch, loss=breaks, optimizer=optimizer, path=None)
    assert state_of(model, optimizer, batch) == before


def test_the_next_step_is_the_same_as_without_a_report(used):
    model, _, batch, loss = used
    twin = copy.deepcopy(model)
    wf.report(model, batch=batch, loss=loss, comparison=False, path=None)
    state = wf.get_rng_state()
    losses = []
    for each in (model, twin):
        wf.set_rng_state(state)
        each.train()
        losses.append(loss(each(batch[0]), batch[1]).item())
    assert losses[0] == losses[1]


def test_the_prediction_trace_alone_changes_nothing(used):
    model, optimizer, batch, _ = used
    before = copy.deepcopy(state_of(model, optimizer, batch))
    report = wf.report(model, example=batch[0][:1], path=None)
    assert report["prediction"].body is not None
    assert state_of(model, optimizer, batch) == before


def test_a_model_still_runs_as_one_call_in_a_map():
    model, examples = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), [wf.randn(3) for _ in range(4)]
    wf.report(model, example=examples[0], path=None)
    wf.map(model, examples)
    assert [(kind.name, kind.nodes) for kind in wf.batching.last().kinds] == [("Sequential", 4)]


def test_frozen_parameters_and_a_loss_without_graph():
    model, batch, loss = a_task()
    for p in model.parameters():
        p.requires_grad_(False)
    report = wf.report(model, batch=batch, loss=loss, comparison=True, path=None)
    assert report["flow"].body is not None and all(p.grad is None for p in model.parameters())


def test_inside_no_grad_the_step_is_a_training_step_all_the_same():
    model, batch, loss = a_task()
    with wf.no_grad():
        report = wf.report(model, batch=batch, loss=loss, comparison=True, path=None)
        assert not wf.is_grad_enabled()
    assert "Gradients reach all 6 parameters" in str(report) and all(p.grad is None for p in model.parameters())


def test_what_a_model_counts_itself_is_put_back():
    model, batch, loss = a_task()
    model.times = 0

    def count(*_):
        model.times += 1

    model.last.register_forward_hook(count)
    wf.report(model, batch=batch, loss=loss, comparison=False, path=None)
    assert model.times == 0
    wf.report(model, example=batch[0], path=None)
    assert model.times == 0


def test_a_compiled_model_is_looked_at_as_it_was_written():
    model, batch, loss = a_task()
    compiled = wf.compile(model)
    report = wf.report(compiled, batch=batch, loss=loss, comparison=False, path=None)
    assert "first" in report["flow"].lines[0] and "Net" in report.title


def test_in_another_thread():
    import threading

    found = []

    def work():
        model, batch, loss = a_task()
        found.append(wf.report(model, batch=batch, loss=loss, comparison=False, path=None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0]["graph"].body is not None


def test_models_that_give_dictionaries_and_take_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, x, y):
            return {"sum": self.a(x) + self.b(y), "words": "none"}

    wf.manual_seed(0)
    batch = (wf.randn(5, 2), wf.randn(5, 4), wf.randn(5, 3))
    report = wf.report(Two(), batch=batch, loss=lambda out, t: ((out["sum"] - t) ** 2).mean(), comparison=False,
                       path=None)  # fmt: skip
    assert report["prediction"].body is not None and report["metrics"].body is None
