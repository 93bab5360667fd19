"""The suite `ship`: its works answer alike on every side and in every mode, and what a side lacks is said."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import agreement, contest
from benchmarks import ship as suite
from benchmarks.sides import COMPILED, TORCH
from benchmarks.works import Unavailable, resolve, served

SMALL = {
    "small mlp": {"sizes": (5, 6, 3)},
    "mlp": {"sizes": (7, 6, 6, 3)},
    "cnn": {},
    "transformer": {"width": 8, "length": 5},
    "lstm": {"length": 4, "size": 3, "hidden": 5},
    "tree": {"hidden": 6, "size": 5},
}
MODELS = {model.name: model for model in suite.MODELS}


def prepared(module, mode, name, batch, data):
    model = MODELS[name]
    given = {**model.parameters, **SMALL[name], "batch": batch, **({"data": data} if model.data else {})}
    return resolve(model.work)(module, mode, **given)


def test_every_model_has_a_small_size():
    assert set(SMALL) == set(MODELS)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_compiled_answers_are_the_same(name, batch, data):
    compiled, eager = (prepared(wf, mode, name, batch, data) for mode in ("compiled", "eager"))
    for _ in range(3):
        assert agreement.difference(compiled.results(), eager.results()) is None
    with wf.no_grad():
        assert not _requires_grad(compiled.step())


def _requires_grad(answer):
    return any(t.requires_grad for t in (answer if isinstance(answer, list) else [answer]))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_pytorch_answers_the_same(name, batch, data):
    torch = pytest.importorskip("torch", reason="the other side is PyTorch")
    mine, theirs = (prepared(module, "eager", name, batch, data).results() for module in (wf, torch))
    assert agreement.difference(mine, theirs) is None


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_the_file_answers_the_same(name, batch, data):
    pytest.importorskip("onnx", reason="files are written by it")
    pytest.importorskip("onnxruntime", reason="files are run by it")
    file, eager = (prepared(wf, mode, name, batch, data) for mode in ("onnx", "eager"))
    file.step()
    assert agreement.difference(file.results(), eager.results()) is None


def test_answers_depend_on_every_request(data):
    for name in SMALL:
        found = prepared(wf, "eager", name, 1, data).results()
        assert len(found) == served.REQUESTS
        assert len({array.tobytes() for array in found}) == served.REQUESTS, name


def test_pytorch_has_no_file_of_a_recursion(data):
    with pytest.raises(Unavailable, match="not the recursion"):
        served.tree(SimpleNamespace(**{**vars(wf), "__name__": "torch"}), "onnx", data, hidden=6, size=5)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(served, "versions", lambda m: {"onnx": "1"})
    with pytest.raises(Unavailable, match=r"^onnxruntime cannot be imported\.$"):
        served.mlp(wf, "onnx", sizes=(2, 3))
    torch = SimpleNamespace(**{**vars(wf), "__name__": "torch"})
    with pytest.raises(Unavailable, match=r"^onnxruntime, onnxscript cannot be imported\.$"):
        served.mlp(torch, "onnx", sizes=(2, 3))


def test_small_models_are_judged_strictly_for_one_request_only():
    small, large = MODELS["small mlp"], MODELS["mlp"]
    assert (small.must(1), small.must(64), large.must(1), large.must(64)) == (0.2, 1.0, 1.0, 1.0)
    outcome = contest.Outcome({TORCH: [4e-5, 3e-5], COMPILED: [5e-6, 4e-6]}, {}, {COMPILED})
    judged = suite.measured(small, 1, "µs", outcome, COMPILED, TORCH, 0.2)
    assert judged.work == "~MLP 16-32-32-4: compiled over PyTorch" and judged.part == "batch 1"
    assert judged.ratio_of_best == pytest.approx(4 / 30) and judged.met is True


def test_the_batch_norm_has_statistics_of_its_own():
    work = served.cnn(wf, "eager")
    norm = work.kept[1]
    assert abs(norm.running_mean.numpy()).max() > 0.01
    assert (norm.running_var.numpy() > 0).all() and np.ptp(norm.running_var.numpy()) > 0.01


def test_the_whole_suite_runs(monkeypatch, tmp_path, one_round):
    """One model, small, in real processes; each side ends as a figure or as a reason."""
    pytest.importorskip("torch", reason="the peer is PyTorch")
    monkeypatch.setattr(suite, "SMALLER", SMALL)
    monkeypatch.setattr(suite, "MODELS", [MODELS["small mlp"]])
    # Each side is two new processes, and PyTorch takes seconds to start in one.
    monkeypatch.setattr(suite, "COLUMNS", [suite.TORCH, suite.COMPILED])
    target = tmp_path / "figures.json"
    arguments = ["ship", "--quick", "--threads", "1", "--only", "batch 1", "--json", str(target)]
    assert command.main(arguments) == 0
    figures = json.loads(target.read_text())
    assert {"PyTorch eager", "Wayfare compiled"} <= set(figures["curves"]["seconds, small mlp, batch 1"])
    (judged,) = [row for row in figures["measurements"] if "compiled" in row["work"]]
    assert judged["wanted"] == 0.2 and judged["ratio_of_best"] > 0
    assert figures["skipped"] == []
