"""Mistakes in what is given to fit, evaluate and callbacks: each is answered with a sentence that says what to do."""

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.train import Callback, ClipGradients, EarlyStopping, KeepBest, Schedule, evaluate, fit

F = nn.functional


def make_model():
    wf.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make_batches(count=5, size=6):
    generator = wf.Generator().manual_seed(7)
    inputs = [wf.randn(size, 4, generator=generator) for _ in range(count)]
    return [(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()) for x in inputs]


def quiet_fit(model, data, **options):
    options.setdefault("optimizer", wf.optim.Adam(model.parameters(), lr=0.01))
    options.setdefault("loss", F.cross_entropy)
    return fit(model, data, progress=False, **options)



def test_an_optimizer_of_another_model_is_noticed():
    optimizer = wf.optim.SGD(make_model().parameters())
    with pytest.raises(wf.errors.ArgumentError, match="the optimizer has none of the model's parameters"):
        quiet_fit(make_model(), make_batches(1), optimizer=optimizer)


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = make_model()
    with pytest.raises(wf.errors.ArgumentError, match="fit: LBFGS computes the loss several times in a step"):
        quiet_fit(model, make_batches(1), optimizer=wf.optim.LBFGS(model.parameters()))


def test_a_plateau_by_steps_is_refused():
    model = make_model()
    plateau = wf.optim.lr_scheduler.ReduceLROnPlateau(wf.optim.SGD(model.parameters()))
    with pytest.raises(wf.errors.ArgumentError, match="ReduceLROnPlateau watches a score.*every='epoch'"):
        Schedule(plateau, every="step")


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ([], {}, "the data gave no batch in epoch 1"),
        ([wf.ones(2, 4)], {}, r"a batch must be a tuple \(input, …, target\), this is a Tensor of 2"),
        ([(wf.ones(2, 4),)], {}, "this is a tuple of 1"),
        ([{"x": 1}], {}, "this is a dict of 1"),
        ([(wf.ones(2, 4), wf.tensor([0, 7]))], {}, "7"),
        ([(wf.ones(2, 3), wf.tensor([0, 1]))], {}, r"in 0 = Linear\(in_features=4, out_features=8, bias=True\)"),
        (make_batches(1), {"epochs": 0}, "epochs must be at least 1"),
        (make_batches(1), {"loss": None}, "needs a loss, or a step"),
        (make_batches(1), {"loss": lambda o, t: 1.0}, "as a tensor of one number, this is float"),
        (make_batches(1), {"loss": lambda o, t: o}, r"this is f32\[6,3\]"),
        (make_batches(1), {"metrics": ["accuracy"]}, r"a metric has update\(\) and compute\(\), a str does not"),
        (make_batches(1), {"overfit": 0}, "overfit must be at least 1"),
        (make_batches(1), {"checkpoint": 3}, "checkpoint must be a folder"),
        (None, {}, "the data must be something to go through, not NoneType"),
        (make_batches(1), {"validation": 3}, "the validation must be something to go through, not int"),
        (make_batches(1), {"validation": []}, "the validation data gave no batch in epoch 1"),
        (make_batches(1), {"validation": iter(make_batches(1)), "epochs": 2},
         "the validation data gave no batch in epoch 2.*An iterator is used up"),
        (make_batches(1), {"epochs": 2.0}, "epochs must be an int, not 2.0"),
        (make_batches(1), {"epochs": "2"}, "epochs must be an int, not '2'"),
        (make_batches(1), {"optimizer": wf.optim.SGD}, "the optimizer is the class SGD.*Make one"),
        (make_batches(1), {"optimizer": "sgd"}, "the optimizer must be .*, not str"),
        (make_batches(1), {"loss": "mse"}, "loss must be a function .*, not str"),
        (make_batches(1), {"loss": nn.CrossEntropyLoss}, "the loss is the class CrossEntropyLoss.*Make one"),
        (make_batches(1), {"metrics": [wf.metrics.Accuracy]}, "the metric is the class Accuracy.*Make one"),
        (make_batches(1), {"metrics": {"a": wf.metrics.Accuracy}}, "the metric is the class Accuracy.*Make one"),
        (make_batches(1), {"metrics": {"a": max}}, r"a metric has update\(\) and compute\(\)"),
        (make_batches(1), {"metrics": {"loss": wf.metrics.Accuracy()}}, "a metric cannot be called 'loss'"),
        (make_batches(1), {"metrics": {"epoch": wf.metrics.Accuracy()}}, "a metric cannot be called 'epoch'"),
        (make_batches(1), {"callbacks": [EarlyStopping]}, "the callback is the class EarlyStopping.*Make one"),
        (make_batches(1), {"callbacks": [print]}, "a callback must be a wf.train.Callback, not"),
        (make_batches(1), {"callbacks": EarlyStopping()}, "callbacks must be a list, not EarlyStopping"),
        (make_batches(1), {"scheduler": wf.optim.lr_scheduler.StepLR}, "the scheduler is the class StepLR"),
        (make_batches(1), {"scheduler": []}, r"the scheduler must have step\(\).* not list"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(data, options, words):
    with pytest.raises(wf.errors.WayfareError, match=words):
        quiet_fit(make_model(), data, **options)


def test_a_model_that_is_no_module_is_named():
    model = make_model()
    with pytest.raises(wf.errors.ArgumentTypeError, match="the model must be an nn.Module, not function"):
        fit(lambda x: model(x), make_batches(1), optimizer=wf.optim.SGD(model.parameters()), loss=F.cross_entropy)
    with pytest.raises(wf.errors.ArgumentTypeError, match="the model must be an nn.Module, not function"):
        evaluate(lambda x: model(x), make_batches(1), loss=F.cross_entropy)
    with pytest.raises(wf.errors.ArgumentTypeError, match="the model is the class Linear.*Make one"):
        evaluate(nn.Linear, make_batches(1), loss=F.cross_entropy)


def test_an_iterator_that_is_used_up_says_so():
    with pytest.raises(wf.errors.OperationError, match="no batch in epoch 2.*An iterator is used up"):
        quiet_fit(make_model(), iter(make_batches()), epochs=2)


def test_callbacks_check_their_arguments():
    for make, words in [
        (lambda: ClipGradients(), "a norm or a value"), (lambda: EarlyStopping(patience=0), "patience"),
        (lambda: EarlyStopping(mode="up"), "'min' or 'max'"),
        (lambda: Schedule(None, every="hour"), "'epoch' or 'step'"),
    ]:  # fmt: skip
        with pytest.raises(wf.errors.ArgumentError, match=words):
            make()


class Squares(wf.data.Dataset):
    """Examples by number, and no number is refused."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return wf.ones(4), wf.tensor(0)


class ByNumber:
    def __getitem__(self, index):
        return wf.ones(2, 4), wf.tensor([0, 1])


def test_a_dataset_in_the_place_of_batches_is_refused():
    x, y = make_batches(1)[0]
    for data in (Squares(), wf.data.TensorDataset(x, y), ByNumber()):
        with pytest.raises(wf.errors.ArgumentTypeError, match="data must be batches.*DataLoader"):
            quiet_fit(make_model(), data)
        with pytest.raises(wf.errors.ArgumentTypeError, match="validation must be batches"):
            quiet_fit(make_model(), make_batches(1), validation=data)
        with pytest.raises(wf.errors.ArgumentTypeError, match="must be batches"):
            evaluate(make_model(), data, loss=F.cross_entropy)


def test_a_second_run_does_not_push_out_the_first_one(tmp_path):
    quiet_fit(make_model(), make_batches(1), epochs=2, checkpoint=tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(wf.errors.ArgumentError, match="holds the checkpoints of a run.*resume=True"):
        quiet_fit(make_model(), make_batches(1), epochs=1, checkpoint=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_schedule_of_another_optimizer_is_noticed():
    other = wf.optim.lr_scheduler.StepLR(wf.optim.SGD(make_model().parameters()), 1)
    for options in ({"scheduler": other}, {"callbacks": [Schedule(other)]}):
        with pytest.raises(wf.errors.ArgumentError, match="the StepLR is for another optimizer"):
            quiet_fit(make_model(), make_batches(1), **options)


def test_metrics_alone_are_enough_to_evaluate():
    scores = evaluate(make_model(), make_batches(2), metrics=[wf.metrics.Accuracy()])
    assert list(scores) == ["accuracy"]
    with pytest.raises(wf.errors.ArgumentError, match="evaluate: needs a loss, metrics, or a step"):
        evaluate(make_model(), make_batches(2))


def test_what_a_run_says_when_it_ends_early(tmp_path, capsys):
    class Interrupt(Callback):
        def after_step(self, run):
            if run.steps == 3:
                raise KeyboardInterrupt

    model = make_model()
    options = {"optimizer": wf.optim.SGD(model.parameters()), "loss": F.cross_entropy, "checkpoint": tmp_path / "run"}
    fit(model, make_batches(2), **options, epochs=3, callbacks=[Interrupt()])
    assert "Interrupted in epoch 2, which is left out of the history; resume=True goes on after epoch 1." in (
        capsys.readouterr().out
    )
    fit(model, make_batches(2), **options, epochs=1, resume=True)
    assert "Resumed after epoch 1: nothing is left to do of 1." in capsys.readouterr().out


def test_the_folder_of_the_best_is_made_before_the_run(tmp_path):
    quiet_fit(make_model(), make_batches(1), callbacks=[KeepBest(tmp_path / "new" / "best.safetensors")])
    assert (tmp_path / "new" / "best.safetensors").exists()
