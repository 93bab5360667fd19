"""wf.Checkpoint: which files stay, what is restored, all or nothing, and a resumed run that is the unbroken one."""

import json
import os
import random
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import (
    ArgumentError,
    ArgumentTypeError,
    FileFormatError,
    MissingFileError,
    OperationError,
)
from wayfare.io import Checkpoint, load

F = wf.nn.functional


def numbers(checkpoint):
    return [entry.number for entry in checkpoint.saved]


def damage(path, keep=0.6):
    with open(path, "r+b") as file:
        file.truncate(int(os.path.getsize(path) * keep))


def test_files_are_named_by_step_or_epoch_and_the_last_few_stay(tmp_path):
    ck = Checkpoint(tmp_path / "deep" / "run", keep=2)
    assert ck.latest is None and ck.saved == [] and ck.best is None
    paths = [ck.save(epoch=epoch) for epoch in range(4)]
    assert paths[3].name == "checkpoint-00000003.safetensors" == ck.latest.name
    assert numbers(ck) == [2, 3] and sorted(os.listdir(ck.folder)) == [paths[2].name, paths[3].name]
    assert ck.save(step=700, epoch=4).name == "checkpoint-00000700.safetensors"
    assert ck.save(note="counts on").name == "checkpoint-00000701.safetensors"
    assert ck.save(step=10**9).name == "checkpoint-1000000000.safetensors"
    assert Checkpoint(ck.folder).latest.name == "checkpoint-1000000000.safetensors"


def test_keep_none_keeps_all_and_the_same_number_replaces(tmp_path):
    ck = Checkpoint(tmp_path, keep=None)
    for epoch in [0, 1, 2, 3, 4, 2]:
        ck.save(epoch=epoch, x=len(numbers(ck)))
    assert numbers(ck) == [0, 1, 3, 4, 2] and ck.restore(2)["x"] == 5


def test_the_latest_is_the_one_saved_last_not_the_highest(tmp_path):
    """Going back to epoch 1 and on from there must not lead to the epoch 5 of the life before."""
    ck = Checkpoint(tmp_path, keep=None)
    for epoch in range(6):
        ck.save(epoch=epoch)
    again = Checkpoint(tmp_path, keep=None)
    again.restore(1)
    again.save(epoch=2, life="second")
    assert Checkpoint(tmp_path).restore() == {"epoch": 2, "life": "second"}


@pytest.mark.parametrize("best, order, kept", [("min", [5.0, 1.0, 2.0, 3.0, 4.0], 1), ("max", [5.0, 1, 2, 3, 4], 0)])
def test_the_best_stays_beside_the_last(tmp_path, best, order, kept):
    ck = Checkpoint(tmp_path, keep=2, best=best, metric="error")
    for epoch, value in enumerate(order):
        ck.save(epoch=epoch, error=value)
    assert numbers(ck) == sorted({kept, 3, 4})
    assert ck.best.name == f"checkpoint-{kept:08d}.safetensors"
    assert ck.restore("best")["error"] == order[kept]
    assert {entry.metric for entry in ck.saved} == {order[kept], 3.0, 4.0}
    assert Checkpoint(tmp_path, best=best).best == ck.best


def test_metrics_can_be_tensors_and_nan_is_never_the_best(tmp_path):
    ck = Checkpoint(tmp_path, keep=None, best="max")
    for value in [wf.nan, wf.tensor(0.5), np.float32(0.25), -wf.inf, wf.nan]:
        ck.save(loss=value)
    assert ck.best == ck.saved[1].path and ck.saved[1].metric == 0.5


@pytest.mark.parametrize("extra", [{}, {"loss": None}, {"loss": "low"}, {"loss": wf.ones(2)}, {"loss": True}])
def test_a_missing_or_wrong_metric_is_named_and_nothing_is_written(tmp_path, extra):
    with pytest.raises(ArgumentError, match="needs the number 'loss'"):
        Checkpoint(tmp_path, best="min").save(epoch=0, **extra)
    assert os.listdir(tmp_path) == []


def test_arguments_are_checked(tmp_path):
    for keep in (0, -1, 1.5, True):
        with pytest.raises(ArgumentError, match="keep must be 1 or more"):
            Checkpoint(tmp_path, keep=keep)
    with pytest.raises(ArgumentError, match="best must be"):
        Checkpoint(tmp_path, best="low")
    with pytest.raises(ArgumentTypeError, match="lr is a float, which has no state_dict"):
        Checkpoint(tmp_path, lr=0.1)
    with pytest.raises(ArgumentTypeError, match="model is a type"):
        Checkpoint(tmp_path, model=wf.nn.Linear)
    with pytest.raises(ArgumentError, match="cannot be named 'extra'"):
        Checkpoint(tmp_path, extra=[])
    for epoch, error in ((-1, ArgumentError), (1.0, ArgumentTypeError), (True, ArgumentTypeError)):
        with pytest.raises(error, match="epoch must be"):
            Checkpoint(tmp_path).save(epoch=epoch)
    with pytest.raises(ArgumentTypeError, match=r'checkpoint\["extra"\]\["f"\] is a builtin'):
        Checkpoint(tmp_path).save(epoch=0, f=len)
    assert os.listdir(tmp_path) == []


def test_nothing_to_restore_is_a_missing_file(tmp_path):
    for which in ("latest", "best", 3, tmp_path / "none"):
        with pytest.raises(MissingFileError):
            Checkpoint(tmp_path).restore(which)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot make the folder"):
        Checkpoint(tmp_path / "file" / "run").save()


def test_extras_come_back_as_they_were(tmp_path):
    extra = {"epoch": 3, "history": [{"loss": 0.5}, {"loss": wf.nan}], "best": (1, None), "mask": wf.ones(2).bool()}
    Checkpoint(tmp_path).save(**extra)
    back = Checkpoint(tmp_path).restore()
    assert back.keys() == extra.keys() and back["best"] == (1, None) and np.isnan(back["history"][1]["loss"])


def test_a_file_of_a_checkpoint_is_an_ordinary_file(tmp_path):
    model = wf.nn.Linear(2, 3)
    path = Checkpoint(tmp_path, model=model).save(epoch=1)
    content = load(path)
    assert content["extra"] == {"epoch": 1}
    assert content["model"]["weight"].tolist() == model.weight.tolist()
    assert b'"model.weight"' in path.read_bytes()


def test_tensors_lists_dicts_and_generators_are_put_back_in_place(tmp_path):
    w, history, table, generator = wf.ones(3, requires_grad=True), [1], {"a": 1}, wf.Generator().manual_seed(5)
    ck = Checkpoint(tmp_path, w=w, history=history, table=table, generator=generator)
    ck.save()
    expected = wf.rand(2, generator=generator)
    with wf.no_grad():
        w.fill_(7)
    history += [2]
    table.update(b=2)
    same_history = history
    ck.restore()
    assert w.tolist() == [1, 1, 1] and w.requires_grad and w.is_leaf
    assert same_history == [1] and table == {"a": 1}
    assert wf.rand(2, generator=generator).tolist() == expected.tolist()


def draws():
    return wf.rand(3).tolist(), random.random(), random.gauss(0, 1), np.random.rand(2).tolist(), np.random.randn()


def test_random_numbers_go_on_where_they_were(tmp_path):
    random.gauss(0, 1), np.random.randn()  # both keep the second of a pair for later
    ck = Checkpoint(tmp_path)
    ck.save()
    expected = draws()
    draws()
    ck.restore()
    assert draws() == expected


def parts_of(seed):
    """Things whose states are easy to compare."""
    wf.manual_seed(seed)
    return {"model": wf.nn.Linear(3, 2), "head": wf.nn.Linear(2, 2, bias=False), "w": wf.randn(4), "seen": [seed]}


def values(parts):
    tensors = [t.tolist() for name in ("model", "head") for t in parts[name].state_dict().values()]
    return [*tensors, parts["w"].tolist(), list(parts["seen"])]


def test_parts_that_do_not_fit_are_all_named_and_nothing_changes(tmp_path):
    Checkpoint(tmp_path, **parts_of(1), other=[1]).save()
    parts = parts_of(2) | {"head": wf.nn.Linear(5, 2), "w": wf.zeros(3), "new": [9]}
    before, state = values(parts), wf.get_rng_state().tolist()
    python, legacy = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(OperationError, match="nothing was changed") as caught:
        Checkpoint(tmp_path, **parts).restore()
    text = str(caught.value)
    assert "new: the file has no state for it" in text and "other: the file has a state" in text
    assert "w: it is f32[3] here and f32[4] in the file" in text
    assert "head: " in text and "weight" in text and "bias" in text and "model:" not in text
    assert values(parts) == before and parts["new"] == [9]
    assert wf.get_rng_state().tolist() == state and random.getstate() == python
    assert np.random.get_state()[1].tolist() == legacy


class Stubborn:
    """Changes half of itself and then refuses, or is interrupted."""

    def __init__(self, error=None):
        self.values, self.error = {"a": 1, "b": 1}, error

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values["a"] = state["a"]
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.values["b"] = state["b"]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_part_that_fails_halfway_is_rolled_back_with_the_others(tmp_path, error):
    first = Stubborn()
    first.values = {"a": 5, "b": 5}
    Checkpoint(tmp_path, part=first, **parts_of(1)).save()
    part, parts = Stubborn(error), parts_of(2)
    before = values(parts)
    ck = Checkpoint(tmp_path, **parts, part=part)
    with pytest.raises(OperationError if isinstance(error, RuntimeError) else KeyboardInterrupt):
        ck.restore()
    assert part.values == {"a": 1, "b": 1} and values(parts) == before
    ck.restore()
    assert part.values == {"a": 5, "b": 5} and values(parts) == values(parts_of(1))


def test_a_damaged_newest_file_is_passed_over_with_a_warning(tmp_path):
    ck = Checkpoint(tmp_path, keep=None, w=wf.zeros(1000))
    for epoch in range(4):
        ck.save(epoch=epoch)
    for epoch, keep in ((3, 0.6), (2, 0)):
        damage(tmp_path / f"checkpoint-{epoch:08d}.safetensors", keep)
    assert ck.latest.name == "checkpoint-00000001.safetensors"
    sentence = r"checkpoint-0000000[23].* is cut off.*going on from checkpoint-00000001"
    with pytest.warns(UserWarning, match=sentence) as seen:
        assert ck.restore()["epoch"] == 1
    assert len(seen) == 2 and all(warning.filename == __file__ for warning in seen)
    with pytest.raises(FileFormatError, match="cut off"):
        ck.restore(tmp_path / "checkpoint-00000003.safetensors")
    ck.save(epoch=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ck.save(epoch=3)
        assert ck.restore()["epoch"] == 3


def test_a_file_whose_structure_is_damaged_is_passed_over_too(tmp_path):
    ck = Checkpoint(tmp_path)
    ck.save(epoch=0)
    path = ck.save(epoch=1)
    path.write_bytes(path.read_bytes().replace(b"tuple", b"tupel"))
    with pytest.warns(UserWarning, match="unknown kind 'tupel'"):
        assert ck.restore()["epoch"] == 0


def test_only_damaged_files_are_an_error_and_are_not_deleted(tmp_path):
    ck = Checkpoint(tmp_path, keep=1)
    ck.save(epoch=0)
    damage(ck.latest)
    with pytest.raises(FileFormatError, match="all checkpoints are damaged"):
        ck.restore()
    for epoch in (1, 2, 3):
        ck.save(epoch=epoch)
    assert len(os.listdir(tmp_path)) == 2 and numbers(ck) == [3]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    names = ["notes.txt", "checkpoint-1.safetensors", "checkpoint-00000001.safetensors.bak"]
    for name in names:
        (tmp_path / name).write_text("mine")
    ck = Checkpoint(tmp_path, keep=1)
    for epoch in range(3):
        ck.save(epoch=epoch)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "checkpoint-00000002.safetensors"])
    wf.save({"w": wf.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="not written by a Checkpoint"):
        ck.restore(tmp_path / "model.safetensors")


def test_a_failed_save_deletes_nothing(tmp_path, monkeypatch):
    ck = Checkpoint(tmp_path, keep=1)
    path = ck.save(epoch=0)

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no room"):
            ck.save(epoch=1)
    assert os.listdir(tmp_path) == [path.name] and ck.restore() == {"epoch": 0}


# A run with dropout, shuffling and noise: bitwise the same whether or not it was interrupted.

X = np.random.default_rng(1).standard_normal((24, 6)).astype(np.float32)
Y = (X[:, :1] * X[:, 1:2] > 0).astype(np.float32)


def noisy_batch():
    rows = random.sample(range(24), 8)
    x = wf.from_numpy(X[rows] + np.random.randn(8, 6).astype(np.float32) * 0.1)
    return x, wf.from_numpy(Y[rows])


def raw_run(folder, stop=None, epochs=6):
    """A network of raw tensors under momentum, going on from what is in the folder."""
    w, v = (wf.randn(6, 16) * 0.3).requires_grad_(), (wf.randn(16, 1) * 0.3).requires_grad_()
    speeds, history = [wf.zeros(6, 16), wf.zeros(16, 1)], []
    ck = Checkpoint(folder, w=w, v=v, speeds=speeds, history=history)
    start = 0 if ck.latest is None else ck.restore()["epoch"] + 1
    for epoch in range(start, epochs):
        for _ in range(3):
            x, y = noisy_batch()
            loss = F.binary_cross_entropy_with_logits(F.dropout((x @ w).tanh(), 0.3) @ v, y)
            loss.backward()
            with wf.no_grad():
                for weight, speed in zip((w, v), speeds, strict=True):
                    speed.mul_(0.9).add_(weight.grad)
                    weight.sub_(speed, alpha=0.1)
                    weight.grad = None
            history.append(loss.item())
        ck.save(epoch=epoch)
        if epoch == stop:
            break
    return history, w.tolist(), v.tolist(), draws()


def library_run(folder, stop=None, epochs=6):
    """The same with layers, an optimiser and a schedule."""
    model = wf.nn.Sequential(wf.nn.Linear(6, 16), wf.nn.Linear(16, 1))
    optimizer = wf.optim.Adam(model.parameters(), lr=0.02)
    schedule = wf.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    history = []
    ck = Checkpoint(folder, model=model, optimizer=optimizer, schedule=schedule, history=history)
    start = 0 if ck.latest is None else ck.restore()["epoch"] + 1
    for epoch in range(start, epochs):
        for _ in range(3):
            x, y = noisy_batch()
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model[1](F.dropout(model[0](x).tanh(), 0.3)), y)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        schedule.step()
        ck.save(epoch=epoch)
        if epoch == stop:
            break
    return history, [p.tolist() for p in model.parameters()], optimizer.param_groups[0]["lr"], draws()


@pytest.mark.parametrize("run", [raw_run, library_run])
def test_a_resumed_run_is_bitwise_the_unbroken_one(tmp_path, run):
    def seeded(seed):
        wf.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    seeded(1)
    unbroken = run(tmp_path / "unbroken")
    seeded(1)
    run(tmp_path / "broken", stop=1)
    seeded(99)  # another process would start from anything
    run(tmp_path / "broken", stop=3)
    seeded(77)
    assert run(tmp_path / "broken") == unbroken
    seeded(2)
    assert run(tmp_path / "other") != unbroken


def test_links_in_the_folder_are_not_written_through(tmp_path):
    checkpoint = wf.Checkpoint(tmp_path / "run", model=wf.nn.Linear(2, 1))
    checkpoint.save(step=1)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run" / "checkpoint-00000002.safetensors").symlink_to(tmp_path / "precious")
    (tmp_path / "run" / "checkpoint-00000003.safetensors").symlink_to(tmp_path / "new")
    for step in (2, 3):
        with pytest.raises(OSError, match="is a link, and what it names would be overwritten"):
            checkpoint.save(step=step)
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "new").exists()
    assert checkpoint.save(step=4) == checkpoint.latest


def test_what_only_looks_like_a_checkpoint_stops_nothing(tmp_path):
    checkpoint = wf.Checkpoint(tmp_path / "run", model=wf.nn.Linear(2, 1))
    first = checkpoint.save()
    (tmp_path / "run" / "checkpoint-00000007.safetensors").mkdir()
    os.mkfifo(tmp_path / "run" / "checkpoint-00000008.safetensors")
    # A file that calls itself number 10**4000: the next one would have a name that no system takes.
    raw = first.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"]["wayfare.checkpoint"] = '{"number":' + "9" * 4000 + ',"order":5,"metric":null}'
    text = json.dumps(header).encode()
    (tmp_path / "run" / "checkpoint-00000009.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + raw[8 + size :]
    )
    assert [entry.path for entry in checkpoint.saved] == [first]
    second = checkpoint.save()
    assert second.name == "checkpoint-00000001.safetensors" and checkpoint.latest == second
    with pytest.raises(ValueError, match="step must be 0 or more and below"):
        checkpoint.save(step=10**4000)
