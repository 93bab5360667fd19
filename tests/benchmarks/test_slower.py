"""The suite `slower`: every pattern computes the same plain and compiled, slow ones are told. No clock is judged."""

from __future__ import annotations

import json
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare as wf
from benchmarks import __main__ as command
from benchmarks import slower as suite
from benchmarks.harness import Measurement, Options, Report
from benchmarks.neighbours import neighbours
from benchmarks.works import Unavailable, turns
from benchmarks.works.patterns import Case, Pattern

TINY = {"round_seconds": 0.0, "warm_seconds": 0.0, "warm_calls": 4, "seconds": 0.0, "rounds": 3, "patience": 60.0}
CALLS = 4


def results(name, compile):
    """What the calls of a pattern returned, tensors as arrays; an error as its type."""
    found = []

    def flat(value):
        if isinstance(value, wf.Tensor):
            found.append(value.detach().numpy().copy())
        elif isinstance(value, dict):
            flat(list(value.values()))
        elif isinstance(value, (tuple, list)):
            for part in value:
                flat(part)

    def remembered(case):
        function = compile(case.function)

        def run(*args, **kwargs):
            result = function(*args, **kwargs)
            flat(result)
            return result

        return Case(run, case.arguments, case.use)

    case = remembered(turns.PATTERNS[name].make(wf))
    wf.manual_seed(1)
    turns.Side(case).run(CALLS)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", turns.PATTERNS)
def test_compiled_computes_the_same(name):
    plain, compiled = results(name, lambda function: function), results(name, wf.compile)
    assert len(plain) == len(compiled)
    for one, other in zip(plain, compiled, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


def test_cases_are_fresh():
    one, other = (turns.PATTERNS["counter"].make(wf) for _ in range(2))
    turns.Side(one).run(3)
    assert (one.function.seen, other.function.seen) == (3, 0)


def test_a_measurement_says_times_and_what_the_engine_did():
    found = turns.measure(wf, "two_ops", **TINY)
    assert len(found["plain"]) == len(found["compiled"]) == 3
    assert found["whole"] > 0 and found["after"] > 0 and found["warned"] == []
    assert found["engine"]["calls"] == found["calls"]


def added(monkeypatch, function, compile):
    """A pattern of this function, and a library that compiles so."""
    monkeypatch.setitem(turns.PATTERNS, "made up", Pattern("part", "title", lambda m: Case(function, repeat((1,)))))
    return SimpleNamespace(__name__="library", compile=compile)


def explained(function, **data):
    found = lambda x: function(x)
    found.explain = lambda: SimpleNamespace(data=data)
    return found


def test_both_sides_get_as_many_calls(monkeypatch):
    calls = {"plain": 0, "compiled": 0}

    def compile(function):
        calls["plain"] = 0  # what came before was to find out how many calls fill a round

        def compiled(x):
            calls["compiled"] += 1

        return explained(compiled)

    def plain(x):
        calls["plain"] += 1

    found = turns.measure(added(monkeypatch, plain, compile), "made up", **TINY)
    assert calls["plain"] == calls["compiled"] == found["calls"] >= TINY["warm_calls"]


def test_patience_ends(monkeypatch):
    library = added(monkeypatch, lambda x: None, lambda function: explained(sum_of_many, plain=1))
    found = turns.measure(library, "made up", **{**TINY, "rounds": 10, "warm_calls": 1000, "patience": 0.0})
    assert len(found["plain"]) == 3 and found["calls"] < 1000


def sum_of_many(x):
    return sum(range(1000))


def test_the_first_reason_is_told():
    variants = [{"python": ""}, {"python": "it reads a clock"}]
    about = explained(None, calls=3, recorded=2, signatures=[{"variants": variants}], retraces=["it changed"])
    told = turns.engine(about)
    assert told == {"calls": 3, "replayed": 0, "checked": 0, "recorded": 2, "plain": 0, "reason": "it reads a clock"}
    assert turns.engine(explained(None, python=[{"reason": "a file"}], retraces=["x"]))["reason"] == "a file"
    assert turns.engine(explained(None))["reason"] == ""


def test_warnings_are_kept_with_the_row(monkeypatch):
    library = added(monkeypatch, lambda x: None, lambda function: explained(warn))
    (told,) = turns.measure(library, "made up", **TINY)["warned"]
    assert told == "it is plain Python"


def warn(x):
    import warnings

    warnings.warn("it is plain Python", stacklevel=1)


def test_a_library_without_compile_is_left_out():
    with pytest.raises(Unavailable, match=r"peer has no compile\(\)"):
        turns.measure(SimpleNamespace(__name__="peer"), "two_ops", **TINY)


def test_rows_are_judged_by_the_median():
    lucky = Measurement("part", "work", "s", [[1.0, 2.0, 2.0], [1.0, 1.0, 1.0]], 1.1, by_median=True)
    assert lucky.ratio_of_best == 1.0 and lucky.met is False
    assert Measurement("part", "work", "s", [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]], 1.1, by_median=True).met is True


def test_a_pattern_that_fails_is_one_line(capsys):
    report = Report("slower", Options(quick=True, peer=""))
    suite.measure(report, "part", {"no_such": Pattern("part", "a title", lambda m: None)})
    assert report.skipped == [{"part": "part", "work": "a title", "reason": "KeyError: 'no_such'"}]
    assert "not measured: a title: KeyError" in capsys.readouterr().out


def test_neighbours_are_busy_until_the_end():
    with neighbours(2) as processes:
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.returncode is not None for process in processes)


def test_the_whole_suite_runs(monkeypatch, tmp_path, capsys):
    """Two parts' worth of patterns, in real processes, beside a busy one."""
    monkeypatch.setattr(suite, "QUICK", TINY)
    target = tmp_path / "figures.json"
    arguments = ["slower", "--quick", "--threads", "1", "--busy", "1", "--json", str(target)]
    assert command.main([*arguments, "--only", "mask_"]) == 0
    figures = json.loads(target.read_text())
    assert figures["modules"] == ["wayfare"] and figures["skipped"] == []
    assert [row["work"] for row in figures["measurements"]] == ["x[x > 0], 64 numbers *", "x[x > 0], 10,000 numbers *"]
    assert all(row["wanted"] == suite.TARGET and row["median_ratio"] > 0 for row in figures["measurements"])
    assert figures["curves"]["mask_small"]["engine"]["calls"] == figures["curves"]["mask_small"]["calls"]
    printed = capsys.readouterr().out
    assert "1 busy neighbours" in printed and "x[x > 0], 64" in printed and "of 2 patterns" in printed
    assert all(len(line) <= suite.WIDTH for line in printed.splitlines())


def test_what_does_no_work_is_not_judged(monkeypatch, capsys):
    monkeypatch.setattr(suite, "QUICK", TINY)
    report = suite.run(Options(quick=True, only="tiny identity"))
    assert [row.met for row in report.measurements] == [None]
    assert "Too slow" not in capsys.readouterr().out


def test_the_suite_is_found():
    assert command.suites()["slower"] is suite
