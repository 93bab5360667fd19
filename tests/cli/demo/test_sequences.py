"""The demo of sequences learns, counts the padding rightly, and leaves files that load."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import wayfare as wf
from wayfare.cli.demo import sequences
from wayfare.cli.demo.words import Vocabulary


@pytest.fixture(scope="module")
def shown(tmp_path_factory, environment):
    """One run of the command as it stands: its text, its folder, and the accuracy at the end."""
    cwd = tmp_path_factory.mktemp("sequences")
    done = subprocess.run(
        [sys.executable, "-m", "wayfare", "demo", "sequences"], cwd=cwd, capture_output=True, encoding="utf-8",
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = cwd / "wayfare-demo" / "sequences"
    history = wf.train.History.load(folder / "history.jsonl")
    return SimpleNamespace(text=done.stdout, folder=folder, accuracy=history[-1]["validation acc"])


@pytest.fixture(scope="module")
def corpus(all_sentences):
    return sequences.prepare(all_sentences, seed=0)


def test_beats_the_baseline_by_far(shown, corpus):
    baseline = sequences.majority(corpus)
    assert shown.accuracy > baseline + 0.3
    for share, of in ((shown.accuracy, "held out"), (baseline, "commonest"), (sequences.counting(corpus), "counting")):
        assert re.search(rf"^  {of} +{share:.1%}[ ,]", shown.text, re.MULTILINE)


def test_shows_six_stages_in_order(shown):
    assert re.findall(r"^Stage (\d) · (.+)$", shown.text, re.MULTILINE) == [
        ("1", "Raw sequences"),
        ("2", "Preparation"),
        ("3", "Embedding"),
        ("4", "A dynamic RNN over true lengths"),
        ("5", "Training and metrics"),
        ("6", "A new sequence of a length never seen"),
    ]


def test_fits_eighty_columns_without_colours(shown):
    assert max(map(len, shown.text.splitlines())) <= 80
    assert "\x1b" not in shown.text


def test_printed_waste_is_an_independent_count(shown, corpus):
    lengths = [len(sentence.words) for sentence in corpus.train]
    cells = len(lengths) * max(lengths)
    padding = sum(max(lengths) - length for length in lengths)
    row = re.search(r"all padded to the longest +\| +([\d,]+) \| +([\d,]+) \| +([\d.]+)%", shown.text)
    assert row.groups() == (f"{cells:,}", f"{padding:,}", f"{100 * padding / cells:.1f}")
    assert re.search(rf"not padded \(this demo\) +\| +{sum(lengths):,} \| +0 \| +0\.0%", shown.text)
    # Padding to each batch's longest needs less, and least where lengths are alike.
    waste = [float(share) for share in re.findall(r"\| +([\d.]+)% \|$", shown.text, re.MULTILINE)]
    assert waste == sorted(waste, reverse=True) and len(waste) == 4
    # The sample of five: its cells are those of the tensor that is shown.
    sample = re.search(r"padded +\[(\d+), (\d+)\], (\d+) cells, (\d+) of", shown.text)
    rows, longest, cells, padding = map(int, sample.groups())
    own = list(map(int, re.search(r"tensors of ([\d, ]+) numbers", shown.text)[1].split(", ")))
    assert (rows, longest, cells, padding) == (len(own), max(own), len(own) * max(own), sum(max(own) - n for n in own))


def test_padding_of_batches_is_counted_batch_by_batch():
    assert sequences.padding_of([3, 1, 4, 4], [[0, 1], [2, 3]]) == (14, 2)
    assert sequences.padding_of([3, 1, 4, 4], [[0, 1, 2, 3]]) == (16, 4)


def test_the_new_sequence_is_longer_than_any_in_training(shown, corpus):
    new, longest = map(int, re.search(r"It has (\d+) words; the longest\s+in training had (\d+)", shown.text).groups())
    assert longest == max(len(sentence.words) for sentence in corpus.train) < new
    chances = re.findall(r"^  (\w+) +([\d.]+)%", shown.text[shown.text.index("Stage 6") :], re.MULTILINE)
    assert {name for name, _ in chances} == set(corpus.classes)
    assert sum(float(chance) for _, chance in chances) == pytest.approx(100, abs=0.4)
    assert "<- the truth" in shown.text


def test_counting_words_is_naive_bayes(corpus):
    made = sequences.Corpus(
        [sentence("a", "x x y"), sentence("a", "x"), sentence("b", "y y z")],
        [sentence("a", "x"), sentence("b", "z"), sentence("a", "z y y")], [],
        Vocabulary(["?", "x", "y", "z"]), ["a", "b"],
    )  # fmt: skip
    assert sequences.counting(made) == pytest.approx(2 / 3)
    assert sequences.majority(made) == pytest.approx(2 / 3)
    assert sequences.majority(corpus) < sequences.counting(corpus) < 0.95


def sentence(label, text):
    return sequences.Sentence(None, "f", label, tuple(text.split()))


def test_files_load_into_a_model_that_answers_the_same(shown, corpus):
    kept = json.loads((shown.folder / "words.json").read_text(encoding="utf-8"))
    assert kept["words"] == corpus.vocabulary.words and kept["classes"] == corpus.classes
    model, restored = (sequences.Reader(len(kept["words"]), len(kept["classes"])) for _ in range(2))
    model.load_state_dict(wf.load(shown.folder / "model.safetensors"))
    restored.load_state_dict(wf.load(wf.Checkpoint(shown.folder / "checkpoint").latest)["model"])
    given = corpus.encoded(corpus.held_out)
    model.eval()
    restored.eval()
    with wf.no_grad():
        answers = wf.stack(wf.map(model, [numbers for numbers, _ in given])).argmax(1)
        assert wf.equal(answers, wf.stack(wf.map(restored, [numbers for numbers, _ in given])).argmax(1))
    right = float((answers == wf.tensor([label for _, label in given])).float().mean().item())
    assert right == pytest.approx(shown.accuracy)
    assert len(wf.train.History.load(shown.folder / "history.jsonl")) == sequences.EPOCHS
    assert "<svg" in (shown.folder / "loss.svg").read_text(encoding="utf-8")


def test_prints_how_the_calls_were_batched(shown):
    found = re.findall(r"^  (batched|a batch) +([\d,]+) calls ran as ([\d,]+) groups", shown.text, re.MULTILINE)
    assert [name for name, *_ in found] == ["batched", "a batch"]
    (small, small_groups), (large, large_groups) = ([int(n.replace(",", "")) for n in row[1:]] for row in found)
    # Five sequences, with a call for each word; and a batch of sequences of about one length.
    lengths = list(map(int, re.search(r"tensors of ([\d, ]+) numbers", shown.text)[1].split(", ")))
    # All steps of a cell are one group, so there are fewer groups than steps of the longest sequence.
    assert small >= sum(lengths) and small_groups < max(lengths)
    assert large > 100 and large_groups < large / 8


def test_words_are_hidden_in_training_only():
    model = sequences.Reader(50, 3)
    words = wf.arange(1, 50).repeat(40)
    model.dropout.p = 0.0
    unknown = model.embedding.weight[0].detach()
    share = float((model.look_up(words) == unknown).all(dim=1).float().mean().item())
    assert share == pytest.approx(sequences.HIDDEN_WORDS, abs=0.05)
    model.eval()
    assert wf.equal(model.look_up(words), model.embedding(words))
