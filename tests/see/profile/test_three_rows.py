"""A comparison as three rows, for the terminal and for a report."""

import re
from html import unescape

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError
from wayfare.profile import Comparison, Row


def row(way, seconds=1e-3, **options):
    about = {"first_seconds": 0.5, "peak_bytes": 2048, "kernels": 1.0, "products": 0.0, "native_calls": 0.0,
             "recorded": 0, "retraces": 0}  # fmt: skip
    return Row(way, seconds, **about | options)


FOUND = Comparison("train <step>", 4, [
    row("eager", 4e-3),
    row("compiled", 1e-3, recorded=3, retraces=1, decisions=1, paths=2, python=["it prints (train.py:3)"]),
    row("PyTorch", 8e-3),
], shapes=3)  # fmt: skip


def test_three_rows_of_what_was_seen():
    text = FOUND.summary()
    lines = text.split("\n")
    assert lines[0] == "train <step>, 4 batches"
    assert re.split(r"\s{2,}", lines[1].strip()) == ["compiled", "eager", "PyTorch"]
    assert [line.split("  ")[0] for line in lines[3:] if line and line[0] != " "] == [
        "training time", "memory", "flexibility",
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)
    words = re.sub(r"\s+", " ", text)
    for said in ("1 ms a step", "8 ms a step", "4.00×", "0.50×", "2 KB", "it prints"):
        assert said in words


def test_the_html_table_says_the_same_and_is_escaped():
    page = FOUND.html()
    shown = FOUND._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox=""' in shown and page in unescape(shown)
    assert "default-src 'none'" in unescape(unescape(shown))
    assert page.count("<tr>") == 4 and page.count('scope="row"') == 3 and page.count('scope="col"') == 3
    assert "train &lt;step&gt;" in page and "<step>" not in page
    assert "1 line decides by values: 2 paths" in page
    assert "3 recorded, 1 after the warm-up" in page
    assert page.count("3 shapes of arguments") == 3 and page.count("nothing recorded") == 2
    assert "ran as plain Python, because it prints (train.py:3)" in page


def model_and_step():
    model = nn.Linear(4, 2)
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        if loss > 0:
            loss = loss * 2
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def test_what_a_step_does_is_counted():
    _, step = model_and_step()
    found = wf.profile.compare(step, [wf.ones(3, 4), wf.ones(5, 4), wf.ones(5, 4)], rounds=1)
    assert found.shapes == 2
    static = found["compiled"]
    assert static.decisions == 1 and static.paths >= 2 and static.recorded >= 2
    assert (found["eager"].decisions, found["eager"].paths) == (0, 0)


def test_pytorch_beside_it():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    theirs = torch.nn.Linear(4, 2)
    seen = []

    def torch_step(x):
        seen.append(x)
        theirs.zero_grad()
        theirs(x).sum().backward()

    _, step = model_and_step()
    x = wf.ones(3, 4)
    found = wf.profile.compare(step, [x], rounds=1, torch_step=torch_step)
    assert [r.way for r in found.rows] == ["eager", "compiled", "PyTorch"]
    assert found["PyTorch"].seconds > 0 and found["PyTorch"].peak_bytes > 0
    assert isinstance(seen[0], torch.Tensor) and seen[0].shape == (3, 4)
    seen[0].zero_()
    assert x.sum() == 12
    assert "PyTorch" in str(found) and "PyTorch" in found.summary()
    given = torch.zeros(1, 4)
    wf.profile.compare(step, [x], rounds=1, torch_step=torch_step, torch_batches=[given])
    assert seen[-1] is given


def test_bad_arguments():
    _, step = model_and_step()
    x = wf.ones(3, 4)
    with pytest.raises(ArgumentError, match="torch_batches without a torch_step"):
        wf.profile.compare(step, [x], torch_batches=[x])
    for batches in (3, x, "abc"):
        with pytest.raises(ArgumentTypeError, match="batches must be a list"):
            wf.profile.compare(step, batches)
    with pytest.raises(ArgumentError, match="rounds must be a whole number"):
        wf.profile.compare(step, [x], rounds=True)
    with pytest.raises(ArgumentTypeError, match="torch_step must be a function, not int"):
        wf.profile.compare(step, [x], torch_step=3)
    if pytest.importorskip("torch", reason="PyTorch is not installed"):
        with pytest.raises(ArgumentError, match="of batches there are 1, of torch_batches 2"):
            wf.profile.compare(step, [x], torch_step=lambda x: x, torch_batches=[x, x])
