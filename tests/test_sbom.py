"""The bill of materials and the pins: complete, the same each time, and of what is installed."""

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("packaging")
ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("make_sbom", ROOT / "tools" / "make_sbom.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)


def test_the_bill_lists_every_dependency_and_what_it_needs(capsys):
    assert tool.main([]) == 0
    text = capsys.readouterr().out
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "wayfare"
    listed = {c["name"]: c["version"] for c in bill["components"]}
    assert {"numpy", "scipy", "llvmlite", "greenlet", "rich"} <= listed.keys()
    # What our dependencies need is there too, and what only tests need is not.
    assert "pygments" in listed and "hypothesis" not in listed
    for name, version in listed.items():
        assert metadata.version(name).partition("+")[0] == version
    # Every reference has its component, and everything hangs on us.
    graph = {d["ref"]: d["dependsOn"] for d in bill["dependencies"]}
    own = bill["metadata"]["component"]["bom-ref"]
    assert graph.keys() == {own, *[c["bom-ref"] for c in bill["components"]]}
    reached, waiting = set(), [own]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += graph[ref]
    assert reached == graph.keys()
    tool.main([])
    assert capsys.readouterr().out == text


def test_a_dependency_that_is_not_there_is_named():
    with pytest.raises(SystemExit, match="nowhere-at-all.* is needed and not installed"):
        tool.closure([tool.Requirement("nowhere-at-all>=1")])


def test_the_lock_has_an_exact_version_of_all_that_the_tests_need():
    lines = [line for line in tool.LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.]+", line) for line in lines)
    locked = [line.partition("==")[0] for line in lines]
    assert locked == sorted(set(locked))
    assert {tool.normal(r.name) for r in tool.own_requirements(["test"])} <= set(locked)


def test_pins_are_of_the_whole_closure(capsys):
    tool.main(["--pins"])
    pinned = capsys.readouterr().out.split()
    tool.main([])
    assert pinned == [f"{c['name']}=={c['version']}" for c in json.loads(capsys.readouterr().out)["components"]]
