"""SummaryWriter: what it writes is read back by an independent reader, and by TensorBoard where it is installed."""

import errno
import math
import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

import wayfare as wf
from tests.see.tensorboard.reader import crc32c, doubles, events, fields, frames, scalars
from wayfare import nn
from wayfare.train import History, TensorBoard, fit
from wayfare.utils.tensorboard import SummaryWriter


@pytest.fixture
def writer(tmp_path):
    with SummaryWriter(tmp_path / "run") as made:
        yield made


def only(path):
    (found,) = events(path)
    return found


def test_the_reader_knows_the_checksum():
    assert crc32c(b"123456789") == 0xE3069283


def test_scalars_by_step(writer):
    for step in range(3):
        writer.add_scalar("loss/training", 1 / (step + 1), step)
    writer.add_scalar("loss/training", wf.tensor([0.125], requires_grad=True), -2)
    writer.add_scalar("other", np.float64(1e300))
    writer.add_scalar("nothing", float("nan"), 2**40)
    found = scalars(writer.path)
    assert found["loss/training"] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3)), (-2, 0.125)]
    assert found["other"] == [(None, math.inf)]
    assert found["nothing"][0][0] == 2**40 and math.isnan(found["nothing"][0][1])


def test_the_file_can_be_read_while_it_grows(writer):
    writer.add_scalar("a", 1.0, 0)
    assert scalars(writer.path) == {"a": [(0, 1.0)]}
    writer.add_scalar("a", 2.0, 1)
    assert scalars(writer.path) == {"a": [(0, 1.0), (1, 2.0)]}


def test_walltime(writer):
    writer.add_scalar("a", 1.0, 0, walltime=12.5)
    assert [fields(body)[1] for body in frames(writer.path.read_bytes())][1] == [12.5]


def test_several_scalars_are_runs_below(writer):
    writer.add_scalars("loss/all", {"training": 1.0, "validation": 2.0}, 7)
    writer.add_scalars("loss/all", {"training": 0.5}, 8)
    folders = sorted(p for p in writer.path.parent.iterdir() if p.is_dir())
    assert [p.name for p in folders] == ["loss_all_training", "loss_all_validation"]
    (file,) = folders[0].iterdir()
    assert scalars(file) == {"loss/all": [(7, 1.0), (8, 0.5)]}


@pytest.mark.parametrize("bins", ["tensorflow", 8, "auto", [-5.0, 0.0, 5.0]])
def test_histograms(writer, bins):
    values = wf.tensor([-3.0, -1.0, 0.0, 0.0, 2.0, float("nan"), float("inf")])
    writer.add_histogram("h", values, 1, bins=bins)
    step, value = only(writer.path)
    found = fields(value[5][0])
    assert step == 1
    assert [found[k][0] for k in range(1, 6)] == [-3.0, 2.0, 5.0, -2.0, 14.0]
    limits, counts = doubles(found[6][0]), doubles(found[7][0])
    assert len(limits) == len(counts) and limits == sorted(limits) and sum(counts) == 5
    assert counts[1:] == np.histogram([-3.0, -1.0, 0.0, 0.0, 2.0], limits)[0].tolist() and counts[0] == 0


def test_texts(writer):
    writer.add_text("notes", "**bold** <script> ü", 3)
    step, value = only(writer.path)
    assert step == 3 and value[1] == [b"notes/text_summary"]
    assert fields(fields(value[9][0])[1][0])[1] == [b"text"]
    tensor = fields(value[8][0])
    assert tensor[1] == [7] and tensor[8] == ["**bold** <script> ü".encode()]


@pytest.mark.parametrize(("shape", "dataformats", "size"), [
    ((3, 4, 5), "CHW", (4, 5, 3)), ((4, 5, 1), "HWC", (4, 5, 1)), ((4, 5), "HW", (4, 5, 1)),
    ((4, 4, 5), "CHW", (4, 5, 4)),
])  # fmt: skip
def test_pictures(writer, shape, dataformats, size):
    image = np.random.default_rng(0).random(shape)
    writer.add_image("im", wf.tensor(image), 0, dataformats=dataformats)
    _, value = only(writer.path)
    found = fields(value[4][0])
    assert (found[1][0], found[2][0], found[3][0]) == size
    data = found[4][0]
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at = data.index(b"IDAT")
    length = int.from_bytes(data[at - 4 : at], "big")
    rows = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + length]), np.uint8).reshape(size[0], -1)
    assert not rows[:, 0].any()
    moved = image.transpose(1, 2, 0) if dataformats == "CHW" else image.reshape(size)
    assert np.abs(rows[:, 1:].reshape(size) / 255 - moved).max() <= 0.5 / 255 + 1e-7


def test_bytes_and_booleans_are_pictures_too(writer):
    writer.add_image("bytes", np.full((1, 2, 2), 200, np.uint8))
    writer.add_image("bools", np.eye(2, dtype=bool), dataformats="HW")
    writer.add_image("nan", np.array([[np.nan, 2.0, -1.0]]), dataformats="HW")
    assert len(list(events(writer.path))) == 3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda w: w.add_scalar("a", [1.0, 2.0]), ValueError, r"takes one number, this has shape \[2\]"),
        (lambda w: w.add_scalar("a", "high"), TypeError, "takes a number or a tensor of one, not str"),
        (lambda w: w.add_scalar("a", None), TypeError, "not NoneType"),
        (lambda w: w.add_scalar("", 1.0), TypeError, "a tag is a text that is not empty"),
        (lambda w: w.add_scalar(3, 1.0), TypeError, "a tag is a text"),
        (lambda w: w.add_scalar("a", 1.0, "first"), TypeError, "global_step must be a whole number"),
        (lambda w: w.add_histogram("a", []), ValueError, "no finite number"),
        (lambda w: w.add_histogram("a", [1.0], bins="wide"), ValueError, "are not valid"),
        (lambda w: w.add_image("a", np.zeros((2, 2))), RuntimeError, "CHW has 3 dimensions"),
        (lambda w: w.add_image("a", np.zeros((2, 4, 4))), RuntimeError, "1, 3 or 4 colours, this has 2"),
        (lambda w: w.add_image("a", np.zeros((3, 4, 4)), dataformats="XYZ"), ValueError, "one of CHW"),
        (lambda w: w.add_image("a", np.zeros((3, 0, 4))), RuntimeError, r"shape \[3, 0, 4\] has no pixel"),
        (lambda w: w.add_scalars("a", 3), TypeError, "numbers by name, a dictionary, not int"),
        (lambda w: w.add_graph(None), AttributeError, r"wf\.debug\.record"),
        (lambda w: w.add_hparams({}, {}), AttributeError, "add_text"),
        (lambda w: w.add_video(None), AttributeError, "add_video is not written"),
        (lambda w: w.nonsense, AttributeError, "has no attribute 'nonsense'"),
        (lambda w: SummaryWriter(7), TypeError, "log_dir must be a folder's path, not int"),
    ],
)
def test_mistakes_leave_no_event(writer, call, error, words):
    with pytest.raises(error, match=words):
        call(writer)
    assert list(events(writer.path)) == []


def test_closed(writer):
    writer.close()
    writer.close()
    writer.flush()
    with pytest.raises(ValueError, match="it is closed"):
        writer.add_scalar("a", 1.0)


def test_two_writers_of_one_folder_have_their_own_files(tmp_path):
    paths = {SummaryWriter(tmp_path).path for _ in range(3)}
    assert len(paths) == 3 == len(list(tmp_path.iterdir()))


def test_the_usual_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SummaryWriter(comment="-trial") as made:
        assert made.get_logdir().startswith("runs" + os.sep) and made.get_logdir().endswith("-trial")
        assert made.path.exists()


def test_a_full_disk_leaves_whole_records(writer, monkeypatch):
    writer.add_scalar("a", 1.0, 0)
    write = os.write

    def full(descriptor, data):
        if len(data) > 20:
            return write(descriptor, bytes(data)[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"cannot write .*No space left on device.*Free some space") as caught:
            writer.add_scalar("a", 2.0, 1)
    assert caught.value.errno == errno.ENOSPC
    writer.add_scalar("a", 3.0, 2)
    assert scalars(writer.path) == {"a": [(0, 1.0), (2, 3.0)]}


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="cannot be a folder, for a file of that name is in the way"):
            SummaryWriter(place)


def test_a_killed_process_leaves_what_it_wrote(tmp_path):
    code = (
        "import os, sys; from wayfare.utils.tensorboard import SummaryWriter\n"
        f"w = SummaryWriter({str(tmp_path)!r})\n"
        "for i in range(5): w.add_scalar('a', i, i)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ, "PYTHONPATH": os.getcwd()})
    (path,) = tmp_path.iterdir()
    assert scalars(path) == {"a": [(i, float(i)) for i in range(5)]}


HISTORY = [
    {"epoch": 1, "loss": 1.0, "validation loss": 1.5, "F1": [0.1, 0.2], "iterations": 3, "seconds": 2.0,
     "learning rate": 0.1, "gradient norms": {"w": 3.0}},
    {"epoch": 2, "loss": 0.5, "validation loss": 1.0, "F1": [0.3, 0.4], "iterations": 3, "seconds": 2.0,
     "learning rate": 0.1, "gradient norms": {"w": 2.0}},
]  # fmt: skip


def test_a_history_as_an_event_file(tmp_path):
    path = History(HISTORY).to_tensorboard(tmp_path)
    assert scalars(path) == {
        "loss/training": [(1, 1.0), (2, 0.5)],
        "loss/validation": [(1, 1.5), (2, 1.0)],
        "F1/0": [(1, pytest.approx(0.1)), (2, pytest.approx(0.3))],
        "F1/1": [(1, pytest.approx(0.2)), (2, pytest.approx(0.4))],
        "run/seconds": [(1, 2.0), (2, 2.0)],
        "run/learning rate": [(1, pytest.approx(0.1)), (2, pytest.approx(0.1))],
        "gradient norm/w": [(1, 3.0), (2, 2.0)],
    }


def test_the_callback_writes_steps_and_epochs(tmp_path):
    wf.manual_seed(0)
    model = nn.Linear(2, 1)
    batches = [(wf.randn(4, 2), wf.randn(4, 1)) for _ in range(4)]
    history = fit(model, batches, optimizer=wf.optim.SGD(model.parameters(), lr=0.1), loss=nn.functional.mse_loss,
                  epochs=2, callbacks=[TensorBoard(tmp_path, every=2)], progress=False)  # fmt: skip
    (path,) = tmp_path.iterdir()
    found = scalars(path)
    assert [step for step, _ in found["loss/step"]] == [2, 4, 6, 8]
    assert found["loss/training"] == [(k + 1, pytest.approx(value)) for k, value in enumerate(history["loss"])]
    with pytest.raises(ValueError, match="every must be a whole number from 1"):
        TensorBoard(tmp_path, every=0)


def test_tensorboard_reads_it(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator",
                                 reason="TensorBoard is not installed")  # fmt: skip
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("a", 0.5, 3)
        writer.add_histogram("h", wf.arange(10).float(), 3)
        writer.add_text("t", "words", 3)
        writer.add_image("i", np.zeros((3, 4, 5)), 3)
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("a")] == [(3, 0.5)]
    assert found.Histograms("h")[0].histogram_value.num == 10
    assert found.Tensors("t/text_summary")[0].tensor_proto.string_val == [b"words"]
    assert (found.Images("i")[0].width, found.Images("i")[0].height) == (5, 4)
