"""Each demo writes its trained model for ONNX Runtime, and the file gives what the model gives."""

import json
import re
import sys
from types import SimpleNamespace

import pytest

import wayfare as wf
from wayfare.cli import main
from wayfare.cli.demo import regression, sequences, shipping, trees
from wayfare.cli.demo.syntax import Tree
from wayfare.cli.demo.words import Vocabulary
from wayfare.core.format import bytes_text

DEMOS = [regression, sequences, trees]


@pytest.fixture(scope="session")
def runtime():
    pytest.importorskip("onnx", reason="onnx is not installed: nothing is exported")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing is exported")


@pytest.fixture
def shipped(runtime, short_runs):
    """What is left of a short run: the text of the stage, the files, and the model in ONNX Runtime as a function."""

    def of(demo):
        run = short_runs[demo]
        path = run.folder / shipping.FILE
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]

        def model(*tensors):
            feed = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
            return wf.from_numpy(session.run(None, feed)[0])

        stage, files = run.text.split("\nShipping\n")[1].split("\nFiles\n")
        return SimpleNamespace(stage=stage, files=files, path=path, names=names, model=model, folder=run.folder)

    return of


@pytest.mark.parametrize("demo", DEMOS)
def test_the_stage_says_what_was_written_and_how_it_did(demo, shipped):
    made = shipped(demo)
    told = dict(re.findall(r"^  (\S+(?: \S+)*)  +(.+)$", made.stage, re.MULTILINE))
    assert told["written"].startswith(f"model.onnx, {bytes_text(made.path.stat().st_size)}: ")
    assert [part.split(" ")[0] for part in re.findall(r"\w+ \[", told["takes"])] == made.names
    assert 0 <= float(told["apart"].split()[0]) < 1e-4
    assert re.search(r"in [\d.]+ (µs|ms|s) in ONNX Runtime$", told["held out"])
    assert re.search(r"[\d.]+ (µs|ms) in ONNX Runtime, [\d.]+ (µs|ms) in Wayfare, compiled", made.stage)
    assert "…" not in made.stage and max(map(len, made.stage.splitlines())) <= 80
    assert re.search(r"^  model\.onnx +\w", made.files, re.MULTILINE)


def test_all_that_was_held_out_ran_again(shipped, short_runs):
    assert "  held out  200 rows, in one call, in " in shipped(regression).stage
    text = short_runs[trees].text
    classes = re.findall(r"^\| \w+… +\| +\d+ \| +(\d+) \|", text, re.MULTILINE)
    assert f"  held out  {sum(map(int, classes))} trees, in one call" in shipped(trees).stage


def test_rows_of_any_number(shipped):
    made, network = shipped(regression), regression.Network().eval()
    network.load_state_dict(wf.load(made.folder / "model.safetensors"))
    for rows in (1, 2, 333):
        x = wf.randn(rows, 10)
        wf.testing.assert_close(made.model(x), network(x).detach(), atol=1e-5, rtol=0)


def test_sequences_of_any_length(shipped):
    made = shipped(sequences)
    kept = json.loads((made.folder / "words.json").read_text(encoding="utf-8"))
    reader = sequences.Reader(len(kept["words"]), len(kept["classes"])).eval()
    reader.load_state_dict(wf.load(made.folder / "model.safetensors"))
    for length in (1, 2, 90):
        words = wf.randint(len(kept["words"]), (length,))
        wf.testing.assert_close(made.model(words), reader(words).detach(), atol=1e-4, rtol=0)


def test_trees_of_any_shape(shipped):
    made = shipped(trees)
    kept = json.loads((made.folder / "kinds.json").read_text(encoding="utf-8"))
    climber = trees.Climber(Vocabulary(kept["kinds"]), len(kept["classes"])).eval()
    climber.load_state_dict(wf.load(made.folder / "model.safetensors"))
    places = int(re.search(r"places for (\d+)\s+children", made.stage)[1])
    leaf = Tree("Name self")
    chain = leaf
    for _ in range(30):
        chain = Tree("Call", (chain,))
    given = [leaf, Tree("Return", (leaf, Tree("no such kind"))), chain, Tree("Call", (leaf,) * places)]
    recursive = wf.stack([climber(tree) for tree in given]).detach()
    by_levels = trees.LevelClimber(climber)
    wf.testing.assert_close(made.model(*by_levels.arrays(given, places)), recursive, atol=1e-5, rtol=0)
    wf.testing.assert_close(made.model(*by_levels.arrays([leaf], places)), recursive[:1], atol=1e-5, rtol=0)
    with pytest.raises(wf.errors.ArgumentError, match=f"a node has {places + 2} children"):
        by_levels.arrays([Tree("Call", (leaf,) * (places + 1))], places)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_packages_the_stage_says_so(missing, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, missing, None)
    assert main.main(["demo", "regression", "--epochs", "1", "--out", str(tmp_path)]) == 0
    stage, files = capsys.readouterr().out.split("\nShipping\n")[1].split("\nFiles\n")
    assert stage == 'Without onnx no model file is written: pip install "wayfare[onnx]" brings it.\n'
    assert shipping.FILE not in files and not (tmp_path / "regression" / shipping.FILE).exists()


def test_a_file_that_cannot_be_written_is_said(runtime, tmp_path, capsys):
    (tmp_path / "regression" / shipping.FILE).mkdir(parents=True)
    assert main.main(["demo", "regression", "--epochs", "1", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("wayfare demo: cannot write to ") and said.count("\n") == 1
