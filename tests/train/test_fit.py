"""fit, evaluate and callbacks: equal to the loop written by hand, resumable to the bit; what is shown and kept."""

import io
import math
import os
import signal
import threading

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.train import Callback, EarlyStopping, KeepBest, Schedule, evaluate, fit
from wayfare.train.screen import Screen

F = nn.functional


def make_model():
    wf.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 3))


def make_batches(count=5, size=6):
    generator = wf.Generator().manual_seed(7)
    batches = []
    for _ in range(count):
        x = wf.randn(size, 4, generator=generator)
        batches.append((x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()))
    return batches


def values(model):
    return [p.detach().numpy().copy() for p in model.parameters()]


def same(first, second):
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def quiet_fit(model, data, **options):
    options.setdefault("optimizer", wf.optim.Adam(model.parameters(), lr=0.01))
    options.setdefault("loss", F.cross_entropy)
    return fit(model, data, progress=False, **options)


def test_fit_is_the_loop_written_by_hand():
    by_hand, batches = make_model(), make_batches()
    optimizer = wf.optim.Adam(by_hand.parameters(), lr=0.01)
    wf.manual_seed(5)
    losses = []
    for _ in range(3):
        total = examples = 0.0
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(by_hand(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimizer.step()
            total += loss.item() * len(y)
            examples += len(y)
        losses.append(total / examples)
    model = make_model()
    wf.manual_seed(5)
    history = quiet_fit(model, batches, epochs=3, clip=0.5)
    same(values(by_hand), values(model))
    assert history["loss"] == losses
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert history[-1]["iterations"] == 5 and history[-1]["peak memory"] > 0


def test_the_loss_weighs_batches_by_their_examples():
    model = nn.Linear(1, 1)
    batches = [(wf.ones(1, 1), wf.zeros(1, 1)), (wf.zeros(3, 1), wf.zeros(3, 1))]
    with wf.no_grad():
        model.weight.fill_(2.0)
        model.bias.zero_()
    assert evaluate(model, batches, loss=F.mse_loss) == {"loss": 1.0}


def test_validation_runs_in_eval_mode_and_records_nothing():
    model = make_model()
    seen = []

    def step(model, batch):
        x, y = batch
        out = model(x)
        seen.append((model.training, out.requires_grad))
        return F.cross_entropy(out, y), out, y

    history = fit(
        model, make_batches(2), optimizer=wf.optim.SGD(model.parameters(), lr=0.1), step=step,
        validation=make_batches(1), metrics={"acc": wf.metrics.Accuracy()}, progress=False,
    )  # fmt: skip
    assert seen == [(True, True), (True, True), (False, False)]
    assert model.training
    assert history.scores() == ["loss", "acc", "validation loss", "validation acc"]


def test_metrics_start_afresh_each_epoch_and_the_users_own_is_untouched():
    metric = wf.metrics.Accuracy()
    model = make_model()
    history = quiet_fit(model, make_batches(), epochs=2, metrics=[metric])
    assert history.scores() == ["loss", "accuracy"]
    assert all(0 <= value <= 1 for value in history["accuracy"])
    with pytest.raises(wf.errors.WayfareError):
        metric.compute()


# -- resuming ----------------------------------------------------------------------------------------------------------


def run_with_checkpoint(folder, epochs, resume=False, interrupt_at=None):
    model = make_model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = wf.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    data = wf.data.TensorDataset(*(wf.cat(part) for part in zip(*make_batches(), strict=True)))
    loader = wf.data.DataLoader(data, batch_size=7, shuffle=True, seed=3)
    callbacks = [EarlyStopping(patience=50)]
    if interrupt_at is not None:
        callbacks.append(Interrupt(interrupt_at))
    wf.manual_seed(11)
    history = fit(
        model, loader, optimizer=optimizer, loss=F.cross_entropy, epochs=epochs, scheduler=scheduler,
        validation=make_batches(1), callbacks=callbacks[:1] if resume else callbacks, checkpoint=folder, resume=resume,
        progress=False,
    )  # fmt: skip
    return model, history


class Interrupt(Callback):
    """Ctrl-C in the middle of an epoch."""

    def __init__(self, steps):
        self.steps = steps

    def after_step(self, run):
        if run.steps == self.steps:
            raise KeyboardInterrupt


def scores(history):
    return [{name: record[name] for name in history.scores() + ["learning rate"]} for record in history]


def test_a_resumed_run_is_bitwise_the_run_that_was_not_interrupted(tmp_path):
    whole, expected = run_with_checkpoint(tmp_path / "whole", 5)
    _, partial = run_with_checkpoint(tmp_path / "parts", 5, interrupt_at=12)
    assert partial.interrupted and len(partial) == 2
    resumed, history = run_with_checkpoint(tmp_path / "parts", 5, resume=True)
    same(values(whole), values(resumed))
    assert scores(history) == scores(expected)
    assert len(set(expected["learning rate"])) == 3


def test_resuming_where_nothing_is_starts_afresh(tmp_path):
    _, history = run_with_checkpoint(tmp_path / "new", 2, resume=True)
    assert len(history) == 2


def test_resuming_needs_a_folder():
    with pytest.raises(wf.errors.ArgumentError, match="resume needs to know from where"):
        quiet_fit(make_model(), make_batches(), resume=True)


# -- callbacks ---------------------------------------------------------------------------------------------------------


def test_early_stopping_stops_and_says_why():
    class Worse(Callback):
        def after_epoch(self, run):
            run.history[-1]["loss"] = float(run.epoch)

    history = quiet_fit(make_model(), make_batches(), epochs=20, callbacks=[Worse(), EarlyStopping(patience=3)])
    assert len(history) == 4
    assert history.stopped == "loss has not improved since epoch 1 (1)"


def test_early_stopping_watches_what_rises():
    class Rising(Callback):
        def after_epoch(self, run):
            run.history[-1]["accuracy"] = [0.1, 0.5, 0.4, 0.5, 0.3, 0.9][run.epoch - 1]

    stop = EarlyStopping("accuracy", patience=3)
    history = quiet_fit(make_model(), make_batches(1), epochs=6, callbacks=[Rising(), stop])
    assert len(history) == 5 and (stop.best, stop.best_epoch) == (0.5, 2)


def test_the_best_state_is_kept_and_restored(tmp_path):
    states = []

    class Remember(Callback):
        def after_epoch(self, run):
            run.history[-1]["loss"] = [3.0, 1.0, 2.0][run.epoch - 1]
            states.append(values(run.model))

    model = make_model()
    keep = KeepBest(tmp_path / "best.safetensors", restore=True)
    quiet_fit(model, make_batches(), epochs=3, callbacks=[Remember(), keep])
    same(values(model), states[1])


def scored(*scores):
    """A step whose validation loss is given, epoch for epoch."""
    left = list(scores)

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return loss if model.training else wf.tensor(left.pop(0))

    return step


def test_a_first_score_that_is_nan_is_not_the_best(tmp_path):
    best, stop = KeepBest(tmp_path / "best.safetensors"), EarlyStopping(patience=2)
    batches = make_batches(1)
    step = scored(math.nan, 1.0, 0.5, math.nan, 0.7, 0.4)
    history = quiet_fit(make_model(), batches, validation=batches, step=step, epochs=6, callbacks=[best, stop])
    assert (best.best, best.best_epoch) == (0.5, 3)
    assert len(history) == 5 and "since epoch 3" in history.stopped
    assert history.best("validation loss")["epoch"] == 3
    assert history.best("validation loss", mode="max")["epoch"] == 2


def test_scores_that_are_all_nan_stop_the_run_and_leave_no_file(tmp_path):
    best, stop = KeepBest(tmp_path / "best.safetensors", restore=True), EarlyStopping(patience=2)
    batches = make_batches(1)
    step = scored(*[math.nan] * 5)
    history = quiet_fit(make_model(), batches, validation=batches, step=step, epochs=5, callbacks=[best, stop])
    assert len(history) == 2 and "validation loss was never a number" in history.stopped
    assert best.best is None and not best.path.exists()
    assert math.isnan(history.best("validation loss")["validation loss"])


def test_resuming_a_run_that_was_stopped_early_trains_no_further(tmp_path):
    batches = make_batches(1)

    def run(patience, resume, count):
        step = scored(*[1.0] * count)
        return quiet_fit(make_model(), batches, validation=batches, step=step, epochs=9, resume=resume,
                         callbacks=[EarlyStopping(patience=patience)], checkpoint=tmp_path)  # fmt: skip

    assert len(run(2, False, 3)) == 3
    again = run(2, True, 0)
    assert len(again) == 3 and "since epoch 1" in again.stopped
    assert len(run(4, True, 2)) == 5  # more patience is more epochs


def test_patience_begins_where_a_run_is_resumed(tmp_path):
    batches = make_batches(1)
    quiet_fit(make_model(), batches, epochs=3, checkpoint=tmp_path)
    step = scored(math.nan, 1.0, 1.0, 1.0)
    options = {"epochs": 9, "checkpoint": tmp_path, "resume": True, "callbacks": [EarlyStopping(patience=2)]}
    history = quiet_fit(make_model(), batches, validation=batches, step=step, **options)
    assert len(history) == 7 and "since epoch 5" in history.stopped


def test_a_checkpoint_that_fit_did_not_write_is_not_resumed(tmp_path):
    model = make_model()
    checkpoint = wf.Checkpoint(tmp_path, model=model)
    checkpoint.save(epoch=1)
    with pytest.raises(wf.errors.OperationError, match="was not saved by fit, so there is no run to go on with"):
        quiet_fit(model, make_batches(1), checkpoint=checkpoint, resume=True)


def test_a_score_of_several_numbers_is_neither_watched_nor_drawn():
    metrics = [wf.metrics.F1(average="none")]
    history = quiet_fit(make_model(), make_batches(1), metrics=metrics)
    with pytest.raises(wf.errors.ArgumentError, match="'f1' is several numbers, so there is no curve"):
        history.plot("f1")
    with pytest.raises(wf.errors.ArgumentError, match="'f1' is several numbers, so no epoch is the best"):
        history.best("f1")
    with pytest.raises(wf.errors.ArgumentError, match="'f1' is several numbers, which cannot be watched"):
        quiet_fit(make_model(), make_batches(1), metrics=metrics, callbacks=[EarlyStopping("f1")])


def test_schedules_by_step_and_by_score():
    model = make_model()
    optimizer = wf.optim.SGD(model.parameters(), lr=1.0)
    by_step = wf.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    quiet_fit(model, make_batches(3), optimizer=optimizer, scheduler=Schedule(by_step, every="step"))
    assert optimizer.param_groups[0]["lr"] == 0.125
    plateau = wf.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1, threshold=1e9)
    quiet_fit(model, make_batches(3), optimizer=optimizer, scheduler=plateau, epochs=2, validation=make_batches(1))
    assert optimizer.param_groups[0]["lr"] < 0.125


def test_callbacks_are_called_in_order():
    calls = []

    class Log(Callback):
        def on_start(self, run):
            calls.append("start")

        def before_update(self, run):
            assert all(p.grad is not None for p in run.model.parameters())
            calls.append("update")

        def after_step(self, run):
            calls.append(f"step {run.steps}")

        def after_epoch(self, run):
            calls.append(f"epoch {run.epoch}")

        def on_end(self, run):
            calls.append("end")

    quiet_fit(make_model(), make_batches(2), callbacks=[Log()])
    assert calls == ["start", "update", "step 1", "update", "step 2", "epoch 1", "end"]


def test_a_monitor_that_is_not_there_is_named():
    with pytest.raises(wf.errors.ArgumentError, match="no score 'f1' to watch.*records loss"):
        quiet_fit(make_model(), make_batches(1), callbacks=[EarlyStopping("f1")])


# -- trying out --------------------------------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing(capsys):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model.idle = nn.Linear(1, 1)
    model.forward = lambda x: model[3](model[2](model[1](model[0](x))))
    optimizer = wf.optim.Adam(model.parameters())
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    state = wf.get_rng_state().tolist()
    loaders = {"data": make_batches(), "validation": make_batches(1)}
    history = fit(model, **loaders, optimizer=optimizer, loss=F.cross_entropy, dry_run=True)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    assert wf.get_rng_state().tolist() == state
    assert all(p.grad is None for p in model.parameters()) and not optimizer.state
    assert set(history[0]) == {"epoch", "loss", "validation loss"}
    shown = capsys.readouterr().out
    assert "Dry run: loss" in shown and "No gradient reaches idle.weight, idle.bias." in shown


def test_overfitting_a_batch_drives_the_loss_down():
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    history = quiet_fit(model, make_batches(), overfit=1, epochs=150, validation=make_batches(1))
    assert history[-1]["iterations"] == 1 and "validation loss" not in history[-1]
    assert history["loss"][-1] < 0.1 * history["loss"][0]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_a_real_ctrl_c_ends_the_run_and_the_next_one_works():
    class Press(Callback):
        def after_step(self, run):
            if run.steps == 7:
                os.kill(os.getpid(), signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    model = make_model()
    history = quiet_fit(model, make_batches(), epochs=3, callbacks=[Press()])
    assert history.interrupted and len(history) == 1
    assert all(p.grad is None for p in model.parameters())
    assert len(quiet_fit(model, make_batches(), epochs=2)) == 2


def test_a_loss_that_is_nan_stops_with_a_sentence_and_the_history():
    model = nn.Linear(4, 3)
    batches = make_batches(2)

    def loss(output, target):
        return F.cross_entropy(output, target) * (math.nan if loss.epoch > 2 else 1.0)

    class Count(Callback):
        def on_start(self, run):
            loss.epoch = 1

        def after_epoch(self, run):
            loss.epoch += 1

    words = "the loss is nan in epoch 3, batch 1 .learning rate 0.01."
    with pytest.raises(wf.errors.OperationError, match=words) as raised:
        quiet_fit(model, batches, loss=loss, epochs=5, callbacks=[Count()])
    assert len(raised.value.history) == 2


# -- what is shown and kept --------------------------------------------------------------------------------------------


def test_plain_lines_when_nobody_watches(capsys):
    model = make_model()
    fit(model, make_batches(), optimizer=wf.optim.SGD(model.parameters(), lr=0.1), loss=F.cross_entropy, epochs=2,
        validation=make_batches(1), metrics=[wf.metrics.Accuracy()])  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["epoch", "loss", "accuracy", "val.", "loss", "val.", "accuracy", "ms/it", "peak", "MB"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2"]
    assert max(map(len, lines)) <= 80 and "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    screen = Screen(stream=stream)
    with screen.epoch(1, 2, 4):
        for done in range(1, 5):
            screen.step(done, 0.5)
    assert "epoch 1/2" in stream.getvalue() and "it/s" in stream.getvalue()
