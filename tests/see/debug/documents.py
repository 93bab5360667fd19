"""What every document of a run must be, whatever was recorded."""

import json


def consistent(run):
    """The document of a run, after every reference in it was followed."""
    document = run.document()
    json.dumps(document, allow_nan=False)
    nodes, strings = document["nodes"], document["strings"]
    count = len(nodes["op"])
    assert {len(column) for column in nodes.values()} == {count}
    for at, inputs in enumerate(nodes["inputs"]):
        assert all(-1 <= i < at for i in inputs), (at, inputs)
    assert len(strings) == len(set(strings))
    for column in ("op", "dtype"):
        assert all(0 <= at < len(strings) for at in nodes[column])
    for column in ("name", "attrs"):
        assert all(-1 <= at < len(strings) for at in nodes[column])
    tables = {"stats": "stats", "grad": "stats", "value": "values", "gradvalue": "values", "site": "sites"}
    for column, table in (*tables.items(), ("call", "calls")):
        assert all(-1 <= at < len(document[table]) for at in nodes[column]), column
    for module, parent, _ in document["calls"]:
        assert 0 <= module < len(document["modules"])
        assert -1 <= parent < len(document["calls"])
    for file, line, function in document["sites"]:
        assert line >= 1
        assert 0 <= function < len(strings)
        assert set(document["files"][file]) >= {"name", "code"}
    assert len(document["events"]) == len(document["memory"])
    assert min(document["memory"], default=0) >= 0
    for kind, at, *_ in document["events"]:
        assert kind in "fbadg"
        assert -1 <= at < (len(document["batching"]["groups"]) if kind == "g" else count)
    text = str(run)
    assert max(len(line) for line in text.splitlines()) <= 80
    return document
