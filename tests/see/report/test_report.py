"""wf.report: every section with its data, plain words without it, names that are only text, files that are whole."""

import errno
import os
import re

import pytest

import wayfare as wf
from tests.see.report.parts import SECTIONS, Reader, a_history, a_task
from wayfare import nn


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One report on a user's own model, by one call."""
    model, batch, loss = a_task()
    path = tmp_path_factory.mktemp("report") / "report.html"
    report = wf.report(model, batch=batch, loss=loss, history=a_history(), names=["north", "east", "south"], path=path)
    return report, Reader(path.read_text(encoding="utf-8")), path


def test_one_call_makes_every_section_but_batching(whole):
    report, page, _ = whole
    assert list(page.sections) == SECTIONS
    assert page.absent == ["batching"]
    assert [section.key for section in report.sections if section.body is None] == ["batching"]


def test_the_page_needs_nothing_else(whole):
    _, page, path = whole
    text = path.read_text(encoding="utf-8")
    assert not [a for _, a in page.elements if a.get("src") or (a.get("href") or "#")[0] != "#"]
    assert re.findall(r"url\(|@import", text.partition("srcdoc")[0]) == []
    policy = next(a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "http" not in policy


def test_data_flow_goes_from_the_batch_to_the_gradients(whole):
    flow = whole[1].sections["flow"].partition("what comes out.")[2]
    places = [flow.index(word) for word in ("batch", "first", "norm", "dropout", "last", "loss", "backward")]
    assert places == sorted(places)
    for part in ("f32[12,4]", "f32[12,8]", "f32[12,3]", "40 parameters", "x @ weight.T + bias", "total norm"):
        assert part in flow


def test_training_has_curves_notes_and_gradients(whole):
    report, page, _ = whole
    text = page.sections["training"]
    assert "Still falling: the validation loss" in text and "best so far" in text
    curves = [a for a in page.named("polyline") if a["class"].startswith("curve")]
    assert len(curves) >= 4
    assert all(len(a["points"].split()) == 4 for a in curves[:4])
    assert "first.weight" in text and "norms lie between 0.025 and 0.25" in text
    assert report.observations[0].kind == "falling"


def test_prediction_shows_every_layer_and_chances(whole):
    text = whole[1].sections["prediction"]
    for part in ("input", "first Linear", "norm BatchNorm1d", "dropout Dropout", "last Linear", "f32[1,8]",
                 "the truth"):  # fmt: skip
        assert part in text
    chances = [float(found) for found in re.findall(r"([\d.]+)%", text)]
    assert len(chances) == 3 and sum(chances) == pytest.approx(100, abs=0.3)


def test_the_graph_is_embedded_in_the_viewer(whole):
    (frame,) = whole[1].named("iframe")
    assert frame["srcdoc"].lower().startswith("<!doctype html>")
    assert '"wayfare-run"' in frame["srcdoc"]
    policy = next(a["content"] for a in whole[1].named("meta") if "http-equiv" in a)
    inner = re.findall(r"script-src ('sha256-[^']+')", frame["srcdoc"])
    assert inner and all(digest in policy for digest in inner)


def test_metrics_of_the_batch_say_that_they_are_of_one_batch(whole):
    text = whole[1].sections["metrics"]
    assert "Of the one batch" in text and "Confusion matrix" in text and "north" in text
    cells = [a for a in whole[1].named("td") if "cell number" in (a.get("class") or "")]
    assert len(cells) == 9 and sum("right" in a["class"] for a in cells) == 3


def test_ways_and_costs(whole):
    ways, costs = whole[1].sections["ways"], whole[1].sections["costs"]
    for part in ("compiled", "eager", "training time", "memory", "flexibility"):
        assert part in ways
    for part in ("By operation", "By source line", "By module", "linear", "Alive at the highest point", "peak memory"):
        assert part in costs


def test_the_text_fits_80_columns(whole):
    text = str(whole[0])
    assert max(map(len, text.splitlines())) <= 80 or str(whole[2]) in text.splitlines()[-1]
    for part in ("Report on Net", "Still falling", "accuracy", "not in this report", "compiled"):
        assert part in text
    assert "7 of 8 sections" in repr(whole[0])


def test_sections_by_name(whole):
    assert whole[0]["metrics"] is whole[0]["Metrics"]
    with pytest.raises(KeyError, match="no section 'weather'"):
        whole[0]["weather"]


def test_in_a_notebook_it_is_a_frame(whole):
    shown = whole[0]._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.endswith("</iframe>") and shown.count("<") == 2
    assert 'sandbox="allow-scripts"' in shown
    # The viewer inside the page cannot see the page, nor the page it.
    assert whole[0].html().count("<iframe") == whole[0].html().count('sandbox="allow-scripts"') == 1


def test_a_history_alone_is_a_report():
    report = wf.report(history=a_history(), path=None)
    page = Reader(report.html())
    assert page.absent == [name for name in SECTIONS if name != "training"]
    for name in page.absent:
        text = page.sections[name]
        assert "Not in this report." in text and re.search(r"Give|Nothing was batched", text)


def test_without_a_history_the_gradients_of_the_step_are_shown():
    model, batch, loss = a_task()
    report = wf.report(model, batch=batch, loss=loss, comparison=False, path=None)
    text = Reader(report.html()).sections["training"]
    assert "No history was given" in text and "in one step" in text and "last.bias" in text
    assert report["ways"].body is None


def test_a_parameter_that_gets_no_gradient_is_named():
    model, batch, loss = a_task()
    model.idle = nn.Linear(2, 2)
    report = wf.report(model, batch=batch, loss=loss, comparison=False, path=None)
    assert "No gradient reaches idle.weight, idle.bias" in str(report).replace("\n  ", " ")


def test_gradients_that_are_no_numbers_are_not_taken_for_missing_ones():
    model, (x, y), loss = a_task()
    report = wf.report(model, batch=(x * float("nan"), y), loss=loss, comparison=False, path=None)
    text = str(report).replace("\n  ", " ")
    assert "The gradient of first.weight, first.bias, norm.weight and 3 more is NaN" in text
    assert "No gradient reaches" not in text


def test_a_model_that_does_not_run_in_eval_mode_loses_its_prediction_only():
    model, batch, loss = a_task()
    forward = model.forward
    model.forward = lambda x: forward(x) if model.training else 1 / 0
    report = wf.report(model, batch=batch, loss=loss, comparison=False, path=None)
    assert report["prediction"].body is None and "ZeroDivisionError: division by zero" in report["prediction"].missing
    assert report["graph"].body is not None
    with pytest.raises(ZeroDivisionError):
        wf.report(model, example=batch[0], path=None)


HOSTILE = "</script><script>alert('x')</script><!-- \"quoted\" & \u2028 ]]>"


def test_names_are_only_text():
    model, (x, y), loss = a_task()
    model.register_module("<img src=x onerror=alert(1)>", nn.Identity())
    model.forward = lambda x: type(model).forward(model, getattr(model, "<img src=x onerror=alert(1)>")(x))
    history = a_history()
    for record in history.records:
        record[HOSTILE] = 0.5
        record["gradient norms"][HOSTILE] = 0.1
    report = wf.report(
        model, batch=(x, y), loss=loss, history=history, names=[HOSTILE, "b", "c"], title=HOSTILE, comparison=False,
        stages=[(HOSTILE, HOSTILE, HOSTILE)], truth=HOSTILE, path=None,
    )  # fmt: skip
    page = Reader(report.html())
    assert len(page.named("script")) == 1 and not page.named("img")
    assert not [a for _, a in page.elements if any(key.startswith("on") for key in a)]
    for name in ("flow", "training", "prediction", "metrics"):
        assert "alert('x')" in page.sections[name]
    assert "<img" not in page.named("iframe")[0]["srcdoc"]


def test_a_batch_that_runs_through_a_map_has_batching():
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def step(model, batch):
        scores = wf.stack(wf.map(model, batch[0]))
        return nn.functional.cross_entropy(scores, batch[1]), scores, batch[1]

    batch = ([wf.randn(3) for _ in range(6)], wf.tensor([0, 1, 0, 1, 0, 1]))
    report = wf.report(model, batch=batch, step=step, comparison=False, path=None)
    page = Reader(report.html())
    assert page.absent == ["ways"]
    assert "along recorded paths" in page.sections["batching"]  # its second map, which the report times
    assert "called 6 times" in page.sections["flow"]
    assert "f32[3]" in page.sections["prediction"] and "the truth" in page.sections["prediction"]


def test_batching_that_was_measured_elsewhere_is_shown_by_signature():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    wf.map(model, [wf.randn(3) for _ in range(6)])
    page = Reader(wf.report(model, batching=wf.batching.last(), path=None).html())
    assert "calls a group" in page.sections["batching"] and "Sequential" in page.sections["batching"]


def test_numbers_to_predict_have_errors_for_metrics():
    wf.manual_seed(0)
    model = nn.Linear(2, 1)
    x = wf.randn(8, 2)
    report = wf.report(model, batch=(x, x[:, :1] * 3.5), loss=nn.functional.mse_loss, comparison=False, path=None)
    text = Reader(report.html()).sections["metrics"]
    assert "mean squared error" in text and "R²" in text and "Confusion" not in text


@pytest.mark.parametrize("given", [0.9, -2.0])
def test_yes_and_no_from_probabilities_and_logits(given):
    report = wf.report(predictions=(wf.tensor([given, 0.2]), wf.tensor([1.0, 0.0])), path=None)
    assert report["metrics"].lines[0].startswith("accuracy 100.0%" if given > 0 else "accuracy 0.0%")


def test_warnings_stand_at_the_top_too():
    target = wf.cat([wf.zeros(95), wf.ones(5)]).long()
    metrics = wf.metrics.classification_report(wf.zeros(100).long(), target, names=["genuine", "fraud"])
    report = wf.report(metrics=metrics, path=None)
    assert any("misleads" in warning for warning in report.warnings)
    header = report.html().partition("</header>")[0]
    assert "misleads" in header and "misleads" in Reader(report.html()).sections["metrics"]


@pytest.mark.parametrize(("right", "words"), [(2, "only 2 of 10 are found (recall 20.0%)"), (8, "does not mislead")])
def test_a_class_that_is_seldom_found_is_named_without_a_warning_too(right, words):
    target = wf.tensor([0] * 10 + [1] * 10 + [2] * 10)
    said = wf.tensor([0] * 8 + [1] * 2 + [1] * 9 + [2] + [2] * right + [0] * (10 - right))
    metrics = wf.metrics.classification_report(said, target)
    assert metrics.warnings == []
    assert words in Reader(wf.report(metrics=metrics, path=None).html()).sections["metrics"]


def test_numbers_by_name_are_metrics():
    report = wf.report(metrics={"BLEU": 31.25, "chrF": 0.5}, path=None)
    assert "BLEU 31.25, chrF 0.5" in str(report)


def test_stages_are_shown_as_given():
    report = wf.report(stages=[("text", "as it stands", "hello"), ("codes", "numbers", wf.arange(4)),
                               ("pair", "two", (wf.ones(2), [1, 2, 3]))], path=None)  # fmt: skip
    text = Reader(report.html()).sections["flow"]
    assert "hello" in text and "i64[4]" in text and "0 1 2 3" in text and "(f32[2], 3 numbers)" in text


def test_data_gives_the_batch_and_keeps_its_place():
    model, (x, y), loss = a_task()
    loader = wf.data.DataLoader(wf.data.TensorDataset(x, y), batch_size=4, shuffle=True,
                                generator=wf.Generator().manual_seed(3))  # fmt: skip
    expected = [b[1].tolist() for b in wf.data.DataLoader(wf.data.TensorDataset(x, y), batch_size=4, shuffle=True,
                                                          generator=wf.Generator().manual_seed(3))]  # fmt: skip
    report = wf.report(model, data=loader, loss=loss, comparison=False, path=None)
    assert "the data has 3 batches" in Reader(report.html()).sections["flow"]
    assert [b[1].tolist() for b in loader] == expected


# -- mistakes and files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (lambda m, b, f: {}, ValueError, "there is nothing to report on"),
        (lambda m, b, f: {"model": nn.Linear}, TypeError, r"the model is the class Linear.*Linear\(…\)"),
        (lambda m, b, f: {"model": 3}, TypeError, "must be an nn.Module, not int"),
        (lambda m, b, f: {"model": m, "batch": b}, ValueError, "a batch needs a loss"),
        (lambda m, b, f: {"model": m, "loss": f}, ValueError, "needs a batch to run on"),
        (lambda m, b, f: {"batch": b, "loss": f}, ValueError, "a batch needs the model"),
        (lambda m, b, f: {"model": m, "batch": b, "loss": f, "step": f}, ValueError, "not both"),
        (lambda m, b, f: {"model": m, "batch": b, "loss": nn.CrossEntropyLoss}, TypeError, "loss must be a function"),
        (lambda m, b, f: {"model": m, "batch": b, "loss": "mse"}, TypeError, "loss must be a function, not str"),
        (lambda m, b, f: {"model": m, "batch": b[0], "loss": f}, TypeError, "a batch must be a tuple"),
        (lambda m, b, f: {"model": m, "batch": b, "loss": lambda o, t: o}, TypeError, r"this is f32\[12,3\]"),
        (lambda m, b, f: {"model": m, "batch": b, "loss": lambda o, t: 1.0}, TypeError, "one number, this is float"),
        (lambda m, b, f: {"model": m, "data": iter([b]), "loss": f}, TypeError, "a look would use up"),
        (lambda m, b, f: {"model": m, "data": [], "loss": f}, ValueError, "the data has no batch"),
        (lambda m, b, f: {"model": m, "data": 5, "loss": f}, TypeError, "must be batches to go through, not int"),
        (lambda m, b, f: {"history": [1, 2]}, TypeError, "history must be a wf.train.History, not list"),
        (lambda m, b, f: {"run": 5}, TypeError, r"what wf\.debug\.record\(\) gives, not int"),
        (lambda m, b, f: {"predictions": b[0]}, TypeError, "predictions must be two tensors"),
        (lambda m, b, f: {"predictions": ([1], [2])}, TypeError, r"two tensors, not \(list, list\)"),
        (lambda m, b, f: {"metrics": 0.9}, TypeError, "numbers by name, not float"),
        (lambda m, b, f: {"metrics": {"acc": "high"}}, TypeError, "the metric 'acc' must be a number, not str"),
        (lambda m, b, f: {"comparison": "yes"}, TypeError, "comparison must be what"),
        (lambda m, b, f: {"model": m, "comparison": True}, ValueError, "a comparison needs a step"),
        (lambda m, b, f: {"profile": 5}, TypeError, r"what wf\.profile\(\) gives, not int"),
        (lambda m, b, f: {"batching": 5}, TypeError, r"what wf\.batching\.last\(\) gives, not int"),
        (lambda m, b, f: {"names": "abc", "model": m}, TypeError, "names must be a list"),
        (lambda m, b, f: {"stages": ["raw"]}, TypeError, "a stage is a tuple"),
        (lambda m, b, f: {"stages": 3}, TypeError, "stages must be a list of tuples"),
        (lambda m, b, f: {"history": a_history(), "path": 5}, TypeError, "path must be a file's path, not int"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(options, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=f"(?s)report: .*{words}"):
        wf.report(**options(*a_task()))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_said_before_anything_runs(tmp_path):
    model, batch, _ = a_task()
    with pytest.raises(FileNotFoundError, match="report: the folder .* does not exist"):
        wf.report(model, batch=batch, loss=lambda o, t: pytest.fail("ran"), path=tmp_path / "no" / "report.html")


def test_a_folder_in_place_of_the_file_is_said_before_anything_runs(tmp_path):
    model, batch, _ = a_task()
    with pytest.raises(OSError, match="report: .* is a folder, not a file"):
        wf.report(model, batch=batch, loss=lambda o, t: pytest.fail("ran"), path=tmp_path)


def test_a_full_disk_keeps_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left on device"):
            wf.report(history=a_history(), path=path)
    assert path.read_text() == "the old one" and len(list(tmp_path.iterdir())) == 1
    report = wf.report(history=a_history(), path=None)
    assert report.save(path) == path and report.path == path
    assert "Training trace" in path.read_text(encoding="utf-8")


def test_a_folder_in_place_of_the_file_of_a_report_that_is_there(tmp_path):
    with pytest.raises(OSError, match="is a folder, not a file"):
        wf.report(history=a_history(), path=None).save(tmp_path)
