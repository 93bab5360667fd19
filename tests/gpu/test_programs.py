"""Programs as a user runs them: the demos, the examples and `wayfare doctor`, on a device and on the CPU."""

import functools
import importlib.util
import io
import re
from pathlib import Path

import pytest

import wayfare as wf
from wayfare.cli import main
from wayfare.cli.demo import corpus, regression, sequences, syntax, trees, words
from wayfare.cli.demo.page import Page
from wayfare.cli.demo.results import Results

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
DEMOS = {"regression": regression, "sequences": sequences, "trees": trees}


def some_long(names, *long):
    """Names as parameters; some take long in the emulation."""
    return [pytest.param(name, marks=pytest.mark.long if name in long else ()) for name in names]


@pytest.fixture
def few_sources(monkeypatch):
    """Fewer files to read data from."""
    files = corpus.source_files()[::8]
    for module in (syntax, words):
        monkeypatch.setattr(module, "source_files", lambda: files)
    return files


def ran(demo, folder, device):
    """The text of a demo, its outcome, and the losses that it wrote down."""
    stream = io.StringIO()
    with wf.device(device):
        outcome = demo.run(Page(stream), Results(folder), epochs=1)
    history = wf.train.History.load(folder / "history.jsonl")
    return stream.getvalue(), outcome, [history[-1][key] for key in ("loss", "validation loss")]


@pytest.mark.parametrize("name", some_long(DEMOS, "sequences", "trees"))
def test_a_demo_learns_the_same_on_a_device(cuda, few_sources, monkeypatch, tmp_path, name):
    everything = {"read_trees": syntax.read_trees, "read_sentences": words.read_sentences}
    for module in (sequences, trees):
        for reader in everything.keys() & vars(module).keys():
            monkeypatch.setattr(module, reader, functools.cache(lambda reader=reader: everything[reader]()[::2]))
    _, here, losses = ran(DEMOS[name], tmp_path / "cpu", "cpu")
    text, there, losses_there = ran(DEMOS[name], tmp_path / "cuda", "cuda")
    assert losses_there == pytest.approx(losses, rel=1e-3) and there == pytest.approx(here, abs=0.02)
    assert "Shipping" in text and (tmp_path / "cuda" / "report.html").stat().st_size > 10_000
    here, there = (wf.load(tmp_path / device / "model.safetensors") for device in ("cpu", "cuda"))
    assert here.keys() == there.keys()


def test_the_command_passes_the_device_on(cuda, monkeypatch, tmp_path, capsys):
    seen = []

    def run(*_, **__):
        seen.append(wf.ones(1).device)
        return regression.Outcome(1.0, 0.5)

    monkeypatch.setattr(regression, "run", run)
    assert main.main(["demo", "regression", "--device", "cuda", "--out", str(tmp_path)]) == 0
    assert main.main(["demo", "regression", "--out", str(tmp_path)]) == 0
    assert seen == [wf.device("cuda:0"), wf.device("cpu")] and wf.ones(1).is_cpu
    assert main.main(["demo", "--device", "cuda", "--ranks", "2"]) == 1
    assert "send tensors of the CPU. Leave --ranks or --device out" in capsys.readouterr().err


@pytest.mark.parametrize("name", some_long(EXAMPLES, "sequences", "trees"))
def test_an_example_learns_the_same_on_a_device(cuda, few_sources, capsys, name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "source_files"):
        module.source_files = lambda: few_sources
    shown = {}
    for device in ("cpu", "cuda"):
        module.main(["--steps", "2", "--batch", "4", "--device", device])
        assert wf.get_default_device() == wf.device(device)
        wf.set_default_device(None)
        shown[device] = capsys.readouterr().out
    found = {device: [float(loss) for loss in re.findall(r"loss ([0-9.]+)", text)] for device, text in shown.items()}
    assert len(found["cpu"]) == 2 and found["cuda"] == pytest.approx(found["cpu"], rel=2e-3)
    assert "groups" in shown["cuda"]


def test_doctor_shows_the_gpus(cuda):
    found = main.doctor.examine()
    about = found["gpu"]["cuda:0"]
    assert found["computing"]["devices"].startswith("cpu, cuda:0") and found["gpu"]["state"] == "ready"
    assert wf.cuda.get_device_name() in about and "compute capability" in about and "GiB are free" in about
    assert re.fullmatch(r"[0-9]+\.[0-9]+", found["gpu"]["driver"]) and found["gpu"]["nvrtc"]


@pytest.mark.skipif(wf.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["demo", *EXAMPLES])
def test_without_a_gpu_one_sentence_says_what_to_install(capsys, name):
    if name == "demo":
        assert main.main(["demo", "trees", "--device", "cuda"]) == 1
    else:
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.raises(SystemExit):
            module.main(["--device", "cuda"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "device: 'cuda' needs CuPy" in said and 'pip install "wayfare[cuda]"' in said
