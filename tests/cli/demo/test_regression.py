"""The demo learns, shows what it says it shows, and does the same every time."""

import re

import pytest

import wayfare as wf
from wayfare.cli.demo import regression
from wayfare.cli.demo.data import make_data


@pytest.fixture(scope="module")
def shown(run_demo):
    """One run with the default options, for the tests that read it."""
    return run_demo(regression)


def test_learns_more_than_the_commoner_label(shown):
    wf.manual_seed(0)
    _, held_out = make_data()
    assert shown.outcome.baseline == held_out.baseline
    assert shown.outcome.accuracy > held_out.baseline + 0.15


@pytest.mark.parametrize("seed", [1, 2])
def test_learns_from_other_data_too(seed, run_demo):
    outcome = run_demo(regression, seed=seed).outcome
    assert outcome.accuracy > outcome.baseline + 0.15


def test_shows_five_stages_in_order(shown):
    text = shown.text
    stages = re.findall(r"^Stage (\d) · (.+)$", text, re.MULTILINE)
    assert stages == [
        ("1", "Data"),
        ("2", "Forward pass"),
        ("3", "Loss"),
        ("4", "Gradients"),
        ("5", "Update"),
    ]


def test_shows_shapes_training_prediction_and_graph(shown):
    text = shown.text
    for shape in ("[800, 10]", "[800, 16]", "[16, 10]"):
        assert shape in text
    for part in ("Training", "val. loss", "Prediction", "layer by layer", "The graph of one step"):
        assert part in text
    assert f"{shown.outcome.accuracy:.1%}" in text
    graph = text[text.index("The graph of one step") :]
    assert graph.count("linear") >= 2
    assert "tanh" in graph


def test_loss_falls_in_the_step_and_over_the_epochs(shown):
    text = shown.text
    before, after = map(float, re.search(r"loss +([\d.]+) → ([\d.]+)", text).groups())
    assert after < before
    losses = losses_in(text)
    assert len(losses) == regression.EPOCHS
    assert losses[-1] < losses[0]


def test_gradient_agrees_with_the_one_by_hand(shown):
    text = shown.text
    backward = float(re.search(r"backward +([+-][\d.]+)", text)[1])
    by_hand = float(re.search(r"by hand +([+-][\d.]+)", text)[1])
    assert backward == pytest.approx(by_hand, abs=2e-4)


def test_fits_eighty_columns_without_colours(shown):
    text = shown.text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def losses_in(text):
    """The losses of the epochs' table."""
    return [float(loss) for loss in re.findall(r"^ +\d+ +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+", text, re.MULTILINE)]


def test_same_seed_same_numbers(run_demo):
    first, again = (run_demo(regression, epochs=2) for _ in range(2))
    other = run_demo(regression, epochs=2, seed=1)
    assert losses_in(first.text) == losses_in(again.text) != losses_in(other.text)
    assert wf.load(first.folder / "model.safetensors").keys() == {
        "hidden.weight", "hidden.bias", "output.weight", "output.bias",
    }  # fmt: skip


def test_files_are_there_and_load(shown):
    text, folder = shown.text, shown.folder
    assert f"\n  {folder}\n" in text
    for name in ("model.safetensors", "checkpoint/", "history.jsonl", "loss.svg"):
        assert name in text[text.index("\nFiles\n") :]
    history = wf.train.History.load(folder / "history.jsonl")
    assert [f"{loss:.4f}" for loss in history["loss"]] == [f"{loss:.4f}" for loss in losses_in(text)]
    assert (folder / "loss.svg").read_text(encoding="utf-8").startswith("<svg")
    model, restored = regression.Network(), regression.Network()
    model.load_state_dict(wf.load(folder / "model.safetensors"))
    checkpoint = wf.Checkpoint(folder / "checkpoint", model=restored, optimizer=wf.optim.AdamW(restored.parameters()))
    assert checkpoint.restore()["epoch"] == regression.EPOCHS
    x = wf.randn(4, 10)
    assert wf.equal(model(x), restored(x))


def test_data_is_as_described():
    train, held_out = make_data()
    assert (tuple(train.x.shape), tuple(train.y.shape)) == ((800, 10), (800, 1))
    assert (tuple(held_out.x.shape), tuple(held_out.y.shape)) == ((200, 10), (200, 1))
    assert set(train.y.flatten().tolist()) == {0.0, 1.0}
    assert train.baseline < 0.65 < 0.75 < train.ceiling < 0.95
    # Who knows the formula is right as often as the drawn probabilities say.
    likelier = wf.maximum(train.truth, 1 - train.truth).mean().item()
    assert train.ceiling == pytest.approx(likelier, abs=0.05)
