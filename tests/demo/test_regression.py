"""The demo learns, shows what it says it shows, and does the same every time."""

import io
import re

import pytest

import wayfare as wf
from wayfare.demo import regression
from wayfare.demo.data import make_data
from wayfare.demo.page import Page


def run_demo(**options):
    """Run the demo; returns its text and its score."""
    stream = io.StringIO()
    score = regression.run(Page(stream), **options)
    return stream.getvalue(), score


@pytest.fixture(scope="module")
def shown():
    """One run with the default options, for the tests that read it."""
    return run_demo()


def test_learns_more_than_the_commoner_label(shown):
    _, score = shown
    wf.manual_seed(0)
    _, held_out = make_data()
    assert score.accuracy > held_out.baseline + 0.15


@pytest.mark.parametrize("seed", [1, 2])
def test_learns_from_other_data_too(seed):
    _, score = run_demo(seed=seed)
    wf.manual_seed(seed)
    _, held_out = make_data()
    assert score.accuracy > held_out.baseline + 0.15


def test_shows_five_stages_in_order(shown):
    text, _ = shown
    stages = re.findall(r"^Stage (\d) · (.+)$", text, re.MULTILINE)
    assert stages == [
        ("1", "Data"),
        ("2", "Forward pass"),
        ("3", "Loss"),
        ("4", "Gradients"),
        ("5", "Update"),
    ]


def test_shows_shapes_training_prediction_and_graph(shown):
    text, score = shown
    for shape in ("[800, 10]", "[800, 16]", "[10, 16]"):
        assert shape in text
    for part in ("Training", "held-out loss", "Prediction", "The graph of one step"):
        assert part in text
    assert f"{score.accuracy:.1%}" in text
    graph = text[text.index("The graph of one step") :]
    assert graph.count("matmul") >= 2
    assert "tanh" in graph


def test_loss_falls_in_the_step_and_over_the_epochs(shown):
    text, _ = shown
    before, after = map(float, re.search(r"loss +([\d.]+) → ([\d.]+)", text).groups())
    assert after < before
    losses = [float(loss) for loss in re.findall(r"^\| +\d+ \| +([\d.]+) \| +[\d.]+% \|", text, re.MULTILINE)]
    assert len(losses) == 9
    assert losses[-1] < losses[0]


def test_gradient_agrees_with_the_one_by_hand(shown):
    text, _ = shown
    backward = float(re.search(r"backward +([+-][\d.]+)", text)[1])
    by_hand = float(re.search(r"by hand +([+-][\d.]+)", text)[1])
    assert backward == pytest.approx(by_hand, abs=2e-4)


def test_fits_eighty_columns_without_colours(shown):
    text, _ = shown
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_same_seed_same_text():
    first, _ = run_demo(epochs=2)
    again, _ = run_demo(epochs=2)
    other, _ = run_demo(epochs=2, seed=1)
    assert first == again
    assert first != other


def test_data_is_as_described():
    train, held_out = make_data()
    assert (tuple(train.x.shape), tuple(train.y.shape)) == ((800, 10), (800, 1))
    assert (tuple(held_out.x.shape), tuple(held_out.y.shape)) == ((200, 10), (200, 1))
    assert set(train.y.flatten().tolist()) == {0.0, 1.0}
    assert train.baseline < 0.65 < 0.75 < train.ceiling < 0.95
    # Who knows the formula is right as often as the drawn probabilities say.
    likelier = wf.maximum(train.truth, 1 - train.truth).mean().item()
    assert train.ceiling == pytest.approx(likelier, abs=0.05)
