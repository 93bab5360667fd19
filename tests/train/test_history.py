"""History: what is kept of a run, as JSON lines, text, curves and pictures."""

import json
import math

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.train import History, fit


def short_run(epochs, log):
    """A run of some epochs that keeps a log."""
    model = nn.Linear(4, 3)
    batches = [(wf.randn(6, 4), wf.randint(0, 3, (6,)))]
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy
    return fit(model, batches, optimizer=optimizer, loss=loss, epochs=epochs, log=log, progress=False)


def test_the_log_is_json_lines_and_loads(tmp_path):
    log = tmp_path / "history.jsonl"
    history = short_run(3, log)
    lines = log.read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert History.load(log).records == history.records
    log.write_text("\n".join(lines[:2]) + '\n{"epoch": 3, "lo')
    assert len(History.load(log)) == 2
    log.write_text("[1]\n" + lines[0])
    with pytest.raises(wf.errors.ArgumentError, match="line 1"):
        History.load(log)


def test_numbers_that_json_does_not_know_are_words(tmp_path):
    path = History([{"epoch": 1, "loss": math.inf, "accuracy": math.nan, "f1": -math.inf}]).save(tmp_path / "h.jsonl")
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["loss"] == "inf"
    (record,) = History.load(path)
    assert record["loss"] == math.inf and math.isnan(record["accuracy"]) and record["f1"] == -math.inf


def test_a_history_answers_and_draws(tmp_path):
    records = [{"epoch": i + 1, "loss": 1 / (i + 1), "validation loss": 0.5, "seconds": 1.0} for i in range(30)]
    history = History(records)
    assert history.scores() == ["loss", "validation loss"]
    assert history.best("loss")["epoch"] == 30 and history.best("loss", "max")["epoch"] == 1
    text = history.plot()
    assert max(map(len, text.splitlines())) <= 80
    assert "● loss" in text and "○ validation loss" in text and text.count("●") > 10
    svg = history.save_plot(tmp_path / "curve.svg", title="<loss>").read_text()
    assert "&lt;loss&gt;" in svg and svg.count("<polyline") == 2
    with pytest.raises(KeyError, match="holds epoch, loss"):
        history["f1"]
    with pytest.raises(wf.errors.ArgumentError, match="ends in .svg or .png"):
        history.save_plot(tmp_path / "curve.gif")
    assert History([{"epoch": 1, "loss": math.nan}]).plot() == "(nothing to plot yet)"
    assert "30 epochs" in repr(history) and len(history.table().splitlines()) == 31


def test_a_png_is_drawn_by_matplotlib(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures in PNG are drawn by matplotlib")
    path = History([{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 0.5}]).save_plot(tmp_path / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG")
