"""Thousands of damaged model files: each is read or refused with a sentence, in bounded memory."""

import random
import subprocess
import sys

import pytest

import wayfare as wf
from tests.exporters.bundle.models import doubled
from tests.exporters.inspect.by_hand import deep, field, varint, with_graph
from tests.exporters.onnx.exporting import export, onnx
from tests.mutations import damaged
from wayfare import nn
from wayfare.errors import FileFormatError, WayfareError
from wayfare.exporters.inspect import wire


def clipped(x):
    if x.norm() > 1:
        x = x / x.norm()
    return x * 2


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small models as bytes: weights and metadata, a decision, a loop, weights beside the file."""
    folder = tmp_path_factory.mktemp("models")
    wf.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    wide = nn.Linear(16, 20)
    export(net, (wf.ones(2, 3),), folder / "net.onnx", ["x"], dynamic_axes={"x": {0: "batch"}})
    export(clipped, [(wf.tensor([0.1, 0.2]),), (wf.tensor([3.0, 4.0]),)], folder / "if.onnx")
    export(doubled, (wf.ones(3),), folder / "loop.onnx")
    export(lambda x: wide(x), (wf.ones(2, 16),), folder / "wide.onnx", external_data=True)
    return {file.name.removesuffix(".onnx"): file.read_bytes() for file in folder.iterdir()}


def test_thousands_of_damaged_models(models, tmp_path):
    rng = random.Random(28)
    path = tmp_path / "m.onnx"
    (tmp_path / "wide.onnx.data").write_bytes(models["wide.onnx.data"])
    sources = [contents for name, contents in models.items() if not name.endswith(".data")]
    found = refused = 0
    for _ in range(4000):
        path.write_bytes(damaged(rng.choice(sources), rng))
        try:
            text = str(wf.onnx.inspect(path))
        except WayfareError as error:
            refused += 1
            assert str(error).isprintable()
        else:
            found += 1
            assert text.replace("\n", "").isprintable() and max(map(len, text.split("\n"))) <= 80
    # A changed letter of a name, or a changed weight, is not for us to find.
    assert refused > 2000 and found > 300
    assert {f.name for f in tmp_path.iterdir()} == {"m.onnx", "wide.onnx.data"}


def _messages(message):
    yield message
    for part, value in message.ListFields():
        if part.message_type is not None:
            for each in value if hasattr(value, "add") else [value]:
                yield from _messages(each)


_TEXTS = ("", "x", "..", "../x", "/x", "a\x1b[0m", "If", "Loop", "Constant", "-1", "9" * 30, "[[", "{}", "ai.onnx")
_WHOLE = (0, 1, -1, 2, 3, 7, 99, 2**31 - 1, -(2**31))


def _changed(model, rng):
    """One field of one of the messages in a model as something else."""
    messages = list(_messages(model))
    message = rng.choice(messages)
    fields = message.ListFields()
    if not fields:
        return
    part, value = rng.choice(fields)
    many, how = hasattr(value, "extend"), rng.random()
    if how < 0.15 or part.type in (1, 2):
        message.ClearField(part.name)
    elif many and how < 0.3:
        del value[rng.randrange(len(value))]
    elif part.message_type is not None:
        # By way of bytes: a message cannot be copied into itself.
        other = rng.choice([m for m in messages if m.DESCRIPTOR is part.message_type]).SerializeToString()
        target = value.add() if many and how < 0.6 else rng.choice(value) if many else value
        target.ParseFromString(other)
    else:
        new = {9: _TEXTS, 12: (b"", b"\xff", b"\0" * 9)}.get(part.type, _WHOLE)
        if part.enum_type is not None:
            new = part.enum_type.values_by_number
        if many and how < 0.6:
            value.append(rng.choice(list(new)))
        elif many:
            value[rng.randrange(len(value))] = rng.choice(list(new))
        else:
            setattr(message, part.name, rng.choice(list(new)))


def test_thousands_of_models_with_parts_that_do_not_fit(models, tmp_path):
    rng = random.Random(29)
    path = tmp_path / "m.onnx"
    (tmp_path / "wide.onnx.data").write_bytes(models["wide.onnx.data"])
    sources = [contents for name, contents in models.items() if not name.endswith(".data")]
    found = refused = faults = 0
    for _ in range(1500):
        model = onnx.ModelProto.FromString(rng.choice(sources))
        for _ in range(rng.choice((1, 1, 2, 4))):
            _changed(model, rng)
        path.write_bytes(model.SerializeToString())
        try:
            result = wf.onnx.inspect(path)
        except WayfareError as error:
            refused += 1
            assert str(error).isprintable()
        else:
            found += 1
            faults += bool(result.fault)
            assert str(result).replace("\n", "").isprintable()
    assert refused > 400 and found > 400 and faults > 50


def test_a_cut_model_is_refused_wherever_it_is_cut(models, tmp_path):
    path, whole = tmp_path / "m.onnx", models["net"]
    graph = onnx.ModelProto.FromString(whole).graph.ByteSize()
    for end in range(graph):  # beyond that, only metadata can be missing
        path.write_bytes(whole[:end])
        with pytest.raises(FileFormatError):
            wf.onnx.inspect(path)


MEMORY = """
import resource, sys
import wayfare as wf
wf.onnx.inspect(sys.argv[1])  # what is imported, and made once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for file in sys.argv[2:]:
    try:
        print(len(wf.onnx.inspect(file).nodes))
    except wf.errors.WayfareError as error:
        print(error.sentence)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_within_a_multiple_of_the_file(models, tmp_path):
    count = 100_000
    files = {
        "good": models["net"],
        "nodes": with_graph(b"\x0a\x00" * count),
        "weights": with_graph(b"\x2a\x00" * count),
        "attributes": with_graph(field(1, field(4, b"A") + b"\x2a\x00" * count)),
        "sizes": with_graph(field(11, field(1, b"x") + field(2, field(1, b"\x08\x01" + field(2, b"\n\0" * count))))),
        "claims": with_graph(field(5, b"\x08" + varint(2**40) + b"\x10\x01" + field(8, b"w"))),
        "length": b"\x08\x0a" + field(8, b"\x10\x15") + b"\x3a" + varint(2**40) + b"\0" * 9,
        "deep": deep(5000),
        "unknown": b"\xf8\x7f\x01" * count,
    }  # fmt: skip
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    done = subprocess.run([sys.executable, "-c", MEMORY, *[tmp_path / name for name in files]], capture_output=True,
                          text=True, check=True)  # fmt: skip
    *said, kilobytes = done.stdout.splitlines()
    assert len(said) == len(files) - 1
    assert "so many parts" in said[0] and "so many parts" in said[1] and "takes 1,099,511,627,776" in said[4]
    assert "nested more than 100 deep" in said[6]
    largest = max(map(len, files.values()))
    assert int(kilobytes) * 1024 < 100 * largest


@pytest.mark.parametrize("contents", [b"\x08\x01" * 2000, b"\xf8\x7f\x01" * 2000, field(7, b"\x0a\x00" * 2000)])
def test_the_number_of_fields_is_bounded_whatever_they_are(tmp_path, monkeypatch, contents):
    monkeypatch.setattr(wire, "_MOST_FIELDS", 1000)
    (tmp_path / "m.onnx").write_bytes(contents)
    with pytest.raises(FileFormatError, match="so many parts"):
        wf.onnx.inspect(tmp_path / "m.onnx")
