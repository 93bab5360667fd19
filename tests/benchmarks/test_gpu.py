"""The suite `gpu`, on the CPU with small sizes: works agree on both sides and follow their device, limits are judged,
and what is measured is kept at once."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import agreement, contest, costs, gpu, gpu_table
from benchmarks.batching import MAP
from benchmarks.contest import Limit
from benchmarks.gpu_rows import COPY, GRAPHS, ROWS, SMALL_TRANSFORMER
from benchmarks.harness import Options, Report
from benchmarks.sides import COMPILED, EAGER, TORCH, TORCH_CAPTURABLE, TORCH_COMPILE, TORCH_FUSED, TORCH_GRAPHS
from benchmarks.works import Unavailable, adam, resolve, steps

NAMES = {row.name: row for row in ROWS}


def prepared(module, side, row, data, **more):
    given = {**row.parameters, **row.small, **row.ways[side], **({"data": data} if row.data else {}), **more}
    return resolve(row.work)(module, **given)


# -- works -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_compute_the_same(name, data):
    torch = pytest.importorskip("torch", reason="the other side is PyTorch")
    row = NAMES[name]
    theirs = prepared(torch, TORCH, row, data).results()
    try:
        mine = prepared(wf, row.mine, row, data).results()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert agreement.difference(mine, theirs, row.tolerance.relative, row.tolerance.of_largest) is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "while"])  # it reads values
def test_all_tensors_of_a_step_are_on_the_device(name, data):
    """PyTorch's device "meta" has no numbers and mixes with no other: a tensor left behind is an error."""
    torch = pytest.importorskip("torch", reason="the device is PyTorch's")
    more = {"autocast": None} if "autocast" in NAMES[name].parameters else {}
    prepared(torch, TORCH, NAMES[name], data, device="meta", **more).step()


def test_every_row_has_a_way_for_its_sides():
    for row in ROWS:
        named = {row.mine, *(side for limit in row.limits for side in limit.against)}
        assert named == set(row.ways) or named == {*row.ways, *row.beside}, row.name
        assert row.small or row.name == "ops", row.name
    assert len({row.title for row in ROWS}) == len(NAMES) == len(ROWS)


def test_some_of_a_great_many_parameters_are_compared(monkeypatch):
    """Every layer is among them, whichever stride there is."""
    monkeypatch.setattr(adam, "COMPARED", 20)
    found = adam.update_on_device(wf, layers=3, inputs=7, outputs=8).results()
    assert [len(array) for array in found] == [3 * (7 + 1)] * 3  # strides of 9 in 56 and 8 numbers
    assert all((np.abs(array) > 0).all() for array in found)


def test_modes_of_compile_are_asked_of_the_library():
    asked = []
    fake = SimpleNamespace(__name__="fake", compile=lambda step, mode=None: asked.append(mode) or step)
    for side in (TORCH_GRAPHS, TORCH_CAPTURABLE):
        steps.compiled(fake, side.mode, len)
    assert asked == ["reduce-overhead"] * 2
    assert steps.OPTIMISER_OPTIONS[TORCH_CAPTURABLE.mode] == {"capturable": True}
    with pytest.raises(Unavailable, match=r"^fake\.compile\(\) has no check=\.$"):
        steps.compiled(fake, "unchecked", len)


def test_autocast_that_is_not_there_is_named():
    with pytest.raises(Unavailable, match=r"^bare has no autocast\(\)\.$"):
        steps.in_autocast(SimpleNamespace(__name__="bare"), "cpu", "bfloat16", len)


# -- judging -----------------------------------------------------------------------------------------------------------


def test_other_peers_come_last_and_are_judged_alike():
    row = NAMES["large mlp"]
    later = row.with_others()
    assert list(later.ways) == [TORCH_COMPILE, TORCH_CAPTURABLE, COMPILED]
    assert later.limits == (Limit((TORCH_COMPILE,), None, None), Limit((TORCH_CAPTURABLE,), 0.9, None))
    assert not set(row.ways) & set(row.beside)


def test_limits_are_over_the_fastest_of_their_sides():
    outcome = contest.Outcome({TORCH: [4e-3], TORCH_GRAPHS: [2e-3], TORCH_CAPTURABLE: [1e-3], COMPILED: [0.9e-3]}, {})
    row = dataclasses.replace(NAMES["large mlp"], limits=(Limit((TORCH,), 0.6, 0.3), Limit(GRAPHS, 0.9, None)))
    over_eager, over_graphs = (gpu.measured(row, outcome, limit) for limit in row.limits)
    assert over_eager.ratio_of_best == pytest.approx(0.225) and over_eager.met is True and over_eager.aim_met is True
    assert over_graphs.work.endswith("over reduce-overhead, capturable")
    assert over_graphs.ratio_of_best == pytest.approx(0.9)
    assert gpu.measured(row, outcome, Limit((TORCH,), 0.1, 0.05), judged=False).met is None
    assert gpu.measured(row, contest.Outcome({TORCH: [1.0]}, {}), row.limits[0]) is None
    assert gpu.measured(row, contest.Outcome({COMPILED: [1.0]}, {}), row.limits[0]) is None


def test_trees_are_judged_by_their_milliseconds():
    row = NAMES["trees"]
    judged = gpu.measured(row, contest.Outcome({TORCH: [1.6], MAP: [0.02, 0.03]}, {}), row.limits[0])
    assert judged.absolute and judged.best(0) == pytest.approx(20) and judged.met is True and judged.aim_met is False


def measuring(crew_, **options):
    report = Report("gpu", Options(device="cuda", quick=True, **options))
    return gpu.Measuring(report, crew_, None)


class Outcomes:
    """Stands for a crew: outcomes by the work, and answers to questions."""

    def __init__(self, outcome, free=0, peaks=()):
        self.outcome, self.free, self.peaks, self.asked = outcome, free, list(peaks), []

    def compete(self, ways, work, *rest):
        self.asked.append((work, ways))
        return self.outcome

    def ask(self, side, work, **parameters):
        if work == "devices.memory":
            return [self.free, 2 * self.free]
        return self.peaks.pop(0)

    def release(self):
        pass


def test_a_kernel_is_measured_by_the_copy_beside_it():
    made = measuring(Outcomes(contest.Outcome({TORCH: [1e-3], EAGER: [2e-3]}, {})))
    made.row(COPY)
    made.row(NAMES["elementwise add 64M"])
    assert made.copied == pytest.approx(2 * 4 * 64e6 / 1e-3)
    over_torch, over_copy = made.report.measurements[-2:]
    assert over_torch.ratio_of_best == pytest.approx(2.0) and over_torch.met is False
    # Three arrays are moved and the copy moves two: 1.5 ms would be perfect.
    assert over_copy.ratio_of_best == pytest.approx(2 / 1.5) and over_copy.aim_met is False


@pytest.mark.parametrize("free, layers", [(0, 40), (10**12, 40), (20 * 10**9, 11), (10**8, None)])
def test_adam_takes_no_more_than_the_memory_that_is_free(free, layers):
    fake = Outcomes(contest.Outcome({TORCH: [1.0], TORCH_FUSED: [1.0], EAGER: [0.9]}, {}), free)
    made = measuring(fake)
    made.row(NAMES["adam"])
    if layers is None:
        assert made.report.skipped[0]["reason"] == "the card has too little free memory."
        assert not fake.asked
        return
    assert {given["layers"] for given in fake.asked[0][1].values()} == {layers}
    assert ("only 11 of 40" in made.done[0][0].title) == (layers == 11)


@pytest.mark.parametrize("peaks, linear", [([400e6, 200e6], True), ([400e6, 100e6], False)])
def test_attention_must_need_memory_in_proportion_to_the_length(peaks, linear):
    made = measuring(Outcomes(contest.Outcome({TORCH: [1.0], EAGER: [1.2]}, {}), peaks=[*[1e6] * 2, *peaks]))
    made.row(NAMES["attention"])
    speed, memory = made.report.measurements
    assert speed.met is True and memory.met is linear


# -- the suite ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    """Some rows of each kind; one whose side of Wayfare fails."""
    ways = {TORCH: {}, EAGER: {"kind": "?"}}
    wrong = dataclasses.replace(NAMES["rows softmax"], name="wrong", title="wrong", ways=ways)
    rows = [NAMES["ops"], wrong, NAMES["attention"], COPY, NAMES["elementwise tanh 64M"], NAMES["adam"]]
    monkeypatch.setattr(gpu, "ROWS", rows)
    return rows


def test_rows_are_kept_as_they_come(monkeypatch, tmp_path, few, one_round, capsys):
    """Real processes; a run that is cut off in the middle leaves the rows before. Then the whole of it."""
    pytest.importorskip("torch", reason="the peer is PyTorch")
    target = tmp_path / "figures.json"
    arguments = ["gpu", "--device", "cpu", "--quick", "--threads", "1", "--json", str(target)]
    measure = gpu.Measuring.row
    with monkeypatch.context() as cut:
        cut.setattr(gpu.Measuring, "row", lambda self, row: measure(self, row) if row is few[0] else raising())
        with pytest.raises(KeyboardInterrupt):
            command.main(arguments)
    assert [row["name"] for row in json.loads(target.read_text())["curves"]["rows"]] == ["ops"]
    capsys.readouterr()

    monkeypatch.setattr(gpu, "first_call", lambda report: None)
    assert command.main(arguments) == 0
    figures = json.loads(target.read_text())
    found = {row["name"]: row for row in figures["curves"]["rows"]}
    assert list(found) == [row.name for row in few]
    assert found["wrong"]["missing"] == {"Wayfare eager": "KeyError: '?'"}
    assert set(found["adam"]["best"]) == {"PyTorch eager", "PyTorch fused Adam", "Wayfare eager"}
    assert found["elementwise tanh 64M"]["judged"][1]["ratio_of_best"] > 0
    assert all(row["met"] is None and row["aim_met"] is None for row in figures["measurements"])
    assert [skip["reason"] for skip in figures["skipped"]] == [
        "KeyError: '?'", *["only a CUDA device counts its memory."] * 2]  # fmt: skip
    printed = capsys.readouterr().out
    assert "Not on a card: sizes are small, and nothing is judged." in printed
    table = gpu_table.markdown(figures)
    assert "| 200 small ops, forward + backward |" in table
    assert "- wrong, Wayfare eager: KeyError: '?'" in table


def test_without_the_device_the_suite_says_what_is_missing(capsys, tmp_path):
    torch = pytest.importorskip("torch", reason="the peer is PyTorch")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert command.main(["gpu", "--json", str(tmp_path / "figures.json")]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "no side can use the device 'cuda': torch sees no CUDA device here. wayfare sees no CUDA device" in told
    assert told.endswith("`--device cpu` tries the suite without.")


def raising():
    raise KeyboardInterrupt


def test_an_error_in_one_row_leaves_the_others(monkeypatch, few, capsys):
    monkeypatch.setattr(gpu, "state_devices", lambda report, crew: None)
    monkeypatch.setattr(gpu.Measuring, "row", lambda self, row: 1 / 0 if row is few[1] else measured.append(row.name))
    asked = {}
    monkeypatch.setattr(costs, "first_call", lambda report, starters, states, **given: asked.update(given))
    measured = []
    report = gpu.run(Options(device="cuda", quick=True))
    assert measured == [row.name for row in few if row is not few[1]]
    assert report.skipped == [{"part": "rows", "work": "wrong", "reason": "ZeroDivisionError: division by zero"}]
    assert asked == {"device": "cuda"}
    gpu.run(Options(device="cpu", quick=True, only="first call"))
    assert asked == {"device": "cpu", **SMALL_TRANSFORMER}


def test_after_the_budget_rows_are_left_out(monkeypatch, few, capsys):
    clock = iter([0.0, 10.0, 500.0, 600.0])
    monkeypatch.setattr(gpu, "perf_counter", lambda: next(clock, 700.0))
    monkeypatch.setattr(gpu, "state_devices", lambda report, crew: None)
    measured = []
    monkeypatch.setattr(gpu.Measuring, "row", lambda self, row: measured.append(row.name))
    report = gpu.run(Options(device="cuda", budget=100.0))
    assert measured == ["ops"]
    assert len(report.skipped) == len(few)  # all but the first, and the first call
    assert {skip["reason"] for skip in report.skipped} == {"the budget of 100 s was used up before."}


def test_the_table_has_every_judgement():
    reasons, said = {TORCH_CAPTURABLE: "it failed."}, {COMPILED: ["step runs as plain Python."]}
    outcome = contest.Outcome({TORCH: [4e-3], TORCH_GRAPHS: [2e-3], COMPILED: [1e-3]}, reasons, remarks=said)
    made = measuring(Outcomes(outcome))
    made.row(NAMES["large mlp"])
    figures = {
        "environment": {"date": "today", "compared": "a against b", "under": "Python", "suite": "gpu"},
        "curves": {**made.report.curves, "device": {"name": "A card"}},
        "measurements": [],
        "skipped": made.report.skipped,
    }
    lines = gpu_table.markdown(figures).splitlines()
    assert lines[0] == "today, A card, a against b, Python; gpu."
    assert lines[2] == "| work | PyTorch | `reduce-overhead` | Wayfare | ratio | must | aim |"
    title = NAMES["large mlp"].title
    assert lines[4] == f"| {title} | 4000 µs | 2000 µs | 1000 µs | 0.25× | ≤ 0.6 ✓ | ≤ 0.3 ✓ |"
    assert lines[5] == "| … over reduce-overhead |  |  |  | 0.50× | ≤ 0.9 ✓ |  |"
    assert f"- {title}: step runs as plain Python." in lines
    assert lines[-1] == f"- {title}, reduce- overhead, capturable: it failed."
