"""Runs that were damaged, anywhere: refused with a sentence when they are read, or whole enough to be shown."""

import copy
import json
import random

import pytest

import wayfare as wf
from tests.see.debug.documents import consistent
from wayfare import nn
from wayfare.errors import FileFormatError
from wayfare.see.graph.document import diff_document
from wayfare.see.run_check import problem_of
from wayfare.see.viewer import page

VALUES = [0, 1, -1, -2, 10**6, 10**30, 1e300, None, True, "", "x", "\x1b[31m", [], {}, [[[]]], [0], ["x"], {"a": 1}]


def _plain_run():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with wf.debug.record(title="a step", module=net) as run:
        loss = net(wf.ones(3, 2)).sort(1)[0].sum()
        if loss > -100:
            loss.backward()
    return run.document()


def _batched_run():
    cell = nn.Linear(2, 2)

    def f(x):
        h = cell(x)
        return h.tanh() if h.sum() > 0 else (h * 2).relu()

    with wf.debug.record() as run:
        wf.map(f, [wf.full((2,), float(n)) for n in (-1, 1, 2)])
    return consistent(run)


def _ended_run():
    @wf.compile
    def f(x):
        return x * 2 + 1

    with pytest.raises(wf.errors.WayfareError), wf.debug.record() as run:
        f(wf.ones(3)) @ wf.ones(4)
    return run.document()


def _compared():
    x = wf.ones(2, requires_grad=True)
    return diff_document(wf.graph((x * 2).tanh().sum()).diff(wf.graph((x * 3).sum())))


RUNS = {"plain": _plain_run, "batched": _batched_run, "ended": _ended_run, "compared": _compared}


@pytest.fixture(params=RUNS, scope="module")
def document(request):
    return json.loads(json.dumps(RUNS[request.param]()))


def _places(value, path=()):
    if path:
        yield path
    for key, part in enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ():
        yield from _places(part, (*path, key))


def _use(run):
    """Everything that can be asked of a run."""
    text = str(run) + repr(run) + str(run.stats()) + str(run.error)
    for value in run.nodes:
        text += repr(value) + value.module
        assert (value.elements, value.grad_elements, value.stats, value.grad, value.saved) is not None
    for step in run:
        assert step.memory >= 0
    page(run.document())
    return text


def _damaged(document, path, value):
    around = document = copy.deepcopy(document)
    for key in path[:-1]:
        around = around[key]
    if value is _damaged:
        del around[path[-1]]
    else:
        around[path[-1]] = value
    return document


def test_a_run_that_is_whole_is_one(document):
    assert problem_of(document) == ""


def test_what_is_read_can_be_shown(document, tmp_path):
    rng = random.Random(5)
    places = list(_places(document))
    refused, path = 0, tmp_path / "run.json"
    top = [p for p in places if len(p) <= 2]
    chosen = [(p, _damaged) for p in top] + [(rng.choice(places), rng.choice([*VALUES, _damaged])) for _ in range(1500)]
    for place, value in chosen:
        path.write_text(json.dumps(_damaged(document, place, value)))
        try:
            run = wf.debug.load(path)
        except FileFormatError as error:
            assert "\x1b" not in str(error)
            refused += 1
            continue
        assert "\x1b" not in _use(run), place
    assert refused > 700


@pytest.mark.parametrize("name", ["title", "strings", "nodes", "created"])
def test_what_is_missing_is_named(document, tmp_path, name):
    (tmp_path / "run.json").write_text(json.dumps({k: v for k, v in document.items() if k != name}))
    with pytest.raises(FileFormatError, match="is damaged: ") as caught:
        wf.debug.load(tmp_path / "run.json")
    assert str(caught.value).count("\n") == 0


def test_control_characters_are_spelled_out(tmp_path):
    with wf.debug.record(title="a\x1b[31mb\nc") as run:
        wf.ones(2) * 2
    run.save(tmp_path / "run.json")
    again = wf.debug.load(tmp_path / "run.json")
    assert again.title == "a\x1b[31mb\nc"
    for shown in (str(again), repr(again), str(run), repr(run)):
        assert "\x1b" not in shown and "a\\x1b[31mb\\nc" in shown


def test_names_in_programs_are_spelled_out(tmp_path):
    def f(x):
        return x * 2

    f.__name__ = "f\x1b[2J"
    program = wf.export(f, (wf.ones(2),), tmp_path / "a.wf", output_names=["y\x1b]0;"])
    assert "\x1b" not in repr(program) and "f\\x1b[2J" in repr(wf.load_program(tmp_path / "a.wf"))
