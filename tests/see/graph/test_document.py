"""A graph in the form that the viewer shows."""

import json

import wayfare as wf
from wayfare import nn

COLUMNS = {
    "op", "kind", "name", "inputs", "attrs", "shape", "dtype", "site", "call", "example", "saved", "bytes", "out",
    "stats", "grad", "value", "gradvalue",
}  # fmt: skip


def test_a_model():
    net = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    loss = net(wf.ones(2, 4)).sum(dim=1)
    document = wf.graph(loss, net).document()
    assert json.loads(json.dumps(document)) == document
    assert (document["format"], document["version"]) == ("wayfare-run", 1)
    nodes, strings = document["nodes"], document["strings"]
    assert set(nodes) == COLUMNS and len({len(column) for column in nodes.values()}) == 1
    assert [strings[i] for i in nodes["op"]] == ["leaf"] * 4 + ["linear", "relu", "linear", "sum"]
    assert [strings[i] for i in nodes["name"][:4]] == ["0.weight", "0.bias", "1.1.weight", "1.1.bias"]
    assert nodes["name"][4:] == [-1] * 4
    assert nodes["inputs"] == [[], [], [], [], [0, 1], [4], [5, 2, 3], [6]]
    assert nodes["shape"][-1] == [2] and nodes["bytes"][4] == 24
    assert strings[nodes["attrs"][-1]] == "dim=(1,)"
    assert document["events"] == [["f", i] for i in (4, 5, 6, 7)]
    # Modules by the parameters that were read.
    paths = [[strings[path], strings[kind], parent] for path, kind, parent in document["modules"]]
    assert paths == [["0", "Linear", -1], ["1", "", -1], ["1.1", "Linear", 1]]
    calls = document["calls"]
    assert [calls[i][0] if i >= 0 else None for i in nodes["call"]] == [None] * 4 + [0, None, 2, None]
    assert [calls[parent][0] if parent >= 0 else None for _, parent, _ in calls] == [None, None, 1]


def test_a_module_that_is_called_again_has_several_calls():
    cell = nn.ModuleDict({"gru": nn.GRUCell(2, 2), "out": nn.Linear(2, 2)})
    h = wf.zeros(1, 2)
    for _ in range(3):
        h = cell["out"](cell["gru"](wf.ones(1, 2), h))
    document = wf.graph(h, modules={"model": cell}).document()
    paths = [document["strings"][module[0]] for module in document["modules"]]
    calls = [(paths[module], number) for module, _, number in document["calls"]]
    assert sorted(calls) == sorted((path, n) for n in range(3) for path in ("model", "model.gru", "model.out"))
    for _, parent, number in document["calls"]:
        assert parent < 0 or document["calls"][parent][2] == number


def test_source_lines_with_the_code_around_them():
    y = wf.ones(2, requires_grad=True).exp()
    document = wf.graph(y).document()
    (site,) = document["sites"]
    file = document["files"][site[0]]
    assert file["name"].endswith("test_document.py")
    assert file["code"][str(site[1])] == "    y = wf.ones(2, requires_grad=True).exp()"
    assert str(site[1] - 4) in file["code"] and str(site[1] + 4) in file["code"]
    assert document["strings"][site[2]] == "test_source_lines_with_the_code_around_them"


def test_several_outputs_are_several_values():
    x = wf.ones(4, requires_grad=True)
    values, _ = x.sort()
    left, right = wf.split(values * 1, 2)
    document = wf.graph(left * right).document()
    nodes, strings = document["nodes"], document["strings"]
    assert [strings[i] for i in nodes["op"]].count("sort") == 1
    assert max(nodes["out"]) == 0
    u, s, v = wf.linalg.svd(wf.rand(3, 3).requires_grad_())
    nodes = wf.graph(u.sum() + s.sum() + v.sum()).document()["nodes"]
    assert sorted(nodes["out"])[-2:] == [1, 2]


def test_hostile_names_are_only_data():
    w = wf.ones(1, requires_grad=True)
    name = "</script><script>alert(1)</script>"
    document = wf.graph(w * w, modules={name: w}).document()
    assert document["strings"][document["nodes"]["name"][0]] == name


def test_of_nothing():
    document = wf.graph(wf.ones(2)).document()
    assert document["nodes"]["op"] == [] and document["events"] == []
