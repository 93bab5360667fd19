"""Batches of samples: every kind of field, and sentences for what does not stack."""

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

import wayfare as wf
from wayfare.data import DataLoader, Padded, Stacked, default_collate, default_convert, list_collate, pad_collate

Point = namedtuple("Point", "x y")


@dataclass
class Sentence:
    words: wf.Tensor
    label: int


@pytest.mark.parametrize(
    "samples, dtype",
    [([1, 2], wf.int64), ([1.0, 2.0], wf.float64), ([True, False], wf.bool),
     ([np.float32(1), np.float32(2)], wf.float32), ([np.int16(1), np.int16(2)], wf.int16),
     ([np.array(1.0), np.array(2.0)], wf.float64)],
)  # fmt: skip
def test_numbers(samples, dtype):
    batch = default_collate(samples)
    assert batch.dtype is dtype and batch.tolist() == [float(s) for s in samples]


def test_tensors_and_arrays_stack():
    assert default_collate([wf.zeros(2, 3), wf.ones(2, 3)]).shape == (2, 2, 3)
    batch = default_collate([np.zeros(3, np.float32), np.ones(3, np.float32)])
    assert batch.dtype is wf.float32 and batch.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_containers_keep_their_class():
    batch = default_collate([{"a": 1, "b": ("x", [1.0])}, {"a": 2, "b": ("y", [2.0])}])
    assert batch["a"].tolist() == [1, 2] and batch["b"][0] == ("x", "y") and batch["b"][1][0].tolist() == [1, 2]
    assert type(batch["b"]) is list and type(batch["b"][1]) is list
    point = default_collate([Point(1, wf.zeros(2)), Point(2, wf.ones(2))])
    assert type(point) is Point and point.x.tolist() == [1, 2] and point.y.shape == (2, 2)
    sentence = default_collate([Sentence(wf.zeros(2), 0), Sentence(wf.ones(2), 1)])
    assert type(sentence) is Sentence and sentence.words.shape == (2, 2) and sentence.label.tolist() == [0, 1]
    assert type(default_collate([OrderedDict(a=1)])) is OrderedDict
    assert default_collate(["a", "b"]) == ["a", "b"] and default_collate([b"a", b"b"]) == [b"a", b"b"]


def test_stacked_is_taken_as_it_is():
    x = wf.arange(3)
    assert default_collate(Stacked(x, x))[1] is x


@pytest.mark.parametrize(
    "samples, error, sentences",
    [
        ([(wf.zeros(3), 1), (wf.zeros(4), 2)], RuntimeError,
         ["field [0] has different shapes in the samples: [3], [4]", "pad_collate", "list_collate"]),
        ([{"words": [wf.zeros(3)]}, {"words": [wf.zeros(4)]}], RuntimeError, ["field ['words'][0]"]),
        ([Sentence(wf.zeros(3), 1), Sentence(wf.zeros(2), 2)], RuntimeError, ["field .words", "[2], [3]"]),
        ([wf.zeros(3), wf.zeros(3, 1)], RuntimeError, ["a sample has different shapes", "[3], [3, 1]"]),
        ([[1, 2], [1]], RuntimeError,
         ["hold 1 or 2 values", "collate_fn=wf.data.pad_collate", "collate_fn=wf.data.list_collate"]),
        ([((1, 2), 0), ((1, 2, 3), 1)], RuntimeError,
         ["hold 2 or 3 values in field [0]", "for trees give collate_fn=list"]),
        ([((1, (2, 3)), 0), (((1, 2), 3), 1)], TypeError, ["different kinds", "for trees give collate_fn=list"]),
        ([{"a": 1}, {"b": 1}], KeyError, ["no key 'a'"]),
        ([{"a": 1}, 2], TypeError, ["different kinds", "dict, int"]),
        ([(1,), 2], TypeError, ["different kinds", "int, tuple"]),
        ([1, "a"], TypeError, ["different kinds", "int, str"]),
        ([wf.zeros(1), "a"], TypeError, ["a sample is an str"]),
        ([(1, {1}), (2, {2})], TypeError, ["field [1] is a set, which cannot be stacked"]),
        ([None], TypeError, ["a NoneType"]),
        ([np.array(["a"])], TypeError, ["array of <U1"]),
        ([], ValueError, ["no samples"]),
    ],
)  # fmt: skip
def test_what_does_not_stack(samples, error, sentences):
    with pytest.raises(error) as raised:
        default_collate(samples)
    for sentence in sentences:
        assert sentence in str(raised.value)


def test_convert():
    data = {"a": np.ones(2), "b": (np.float32(1), "text"), "c": object, "d": wf.zeros(1), "p": Point(1, np.zeros(1))}
    out = default_convert(data)
    assert isinstance(out["a"], wf.Tensor) and isinstance(out["b"][0], wf.Tensor) and out["b"][1] == "text"
    assert out["c"] is object and out["d"] is data["d"] and isinstance(out["p"].y, wf.Tensor) and out["p"].x == 1
    strings = np.array(["a"])
    assert default_convert(strings) is strings


def test_padding():
    batch = pad_collate([(wf.ones(2, 3), 0), (wf.ones(4, 3), 1)])
    words, label = batch
    assert isinstance(words, Padded) and words.data.shape == (2, 4, 3) and words.lengths.tolist() == [2, 4]
    assert words.data.sum(dim=(1, 2)).tolist() == [6, 12] and (words.data[0, 2:] == 0).all()
    assert words.mask().tolist() == [[True, True, False, False], [True] * 4]
    assert label.tolist() == [0, 1]


def test_padding_value_dtype_and_fields():
    samples = [{"ids": wf.tensor([1, 2]), "size": wf.zeros(2)}, {"ids": wf.tensor([3]), "size": wf.zeros(2)}]
    collate = functools.partial(pad_collate, padding_value=-1, fields=["ids"])
    batch = collate(samples)
    assert batch["ids"].data.tolist() == [[1, 2], [3, -1]] and batch["ids"].data.dtype is wf.int64
    assert batch["size"].shape == (2, 2)
    assert isinstance(pad_collate(samples)["size"], Padded)
    with pytest.raises(ValueError, match=r"no field 'id', only 'ids', 'size'"):
        pad_collate(samples, fields=["id"])
    with pytest.raises(ValueError, match=r"a sample is a Tensor"):
        pad_collate([wf.zeros(1)], fields=[0])


def test_padding_of_empty_sequences():
    batch = pad_collate([wf.zeros(0), wf.ones(1)])
    assert batch.data.tolist() == [[0], [1]] and batch.lengths.tolist() == [0, 1]


def test_padding_pads_dimension_0_only():
    with pytest.raises(RuntimeError, match=r"field \[0\] has different sizes past the first dimension"):
        pad_collate([(wf.zeros(2, 3),), (wf.zeros(2, 4),)])


def test_lists():
    words, label, score = list_collate([(wf.ones(2), 0, wf.tensor(1.0)), (wf.ones(3), 1, wf.tensor(2.0))])
    assert [w.tolist() for w in words] == [[1, 1], [1, 1, 1]] and label.tolist() == [0, 1] and score.tolist() == [1, 2]
    words, fixed = list_collate([(wf.ones(2), wf.ones(2)), (wf.ones(3), wf.ones(2))], fields=[0])
    assert len(words) == 2 and fixed.shape == (2, 2)


def test_samples_of_stacked_go_through_any_collate():
    assert [len(t) for t in list_collate(Stacked(wf.zeros(3, 2)))[0]] == [2, 2, 2]


def test_lists_of_numbers_are_sequences():
    samples = [([1, 2, 3], 0), ([4], 1), ([], 0)]
    words, label = list_collate(samples)
    assert [w.tolist() for w in words] == [[1, 2, 3], [4], []] and {w.dtype for w in words} == {wf.int64}
    assert label.tolist() == [0, 1, 0]
    words, label = pad_collate(samples)
    assert words.data.tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0]] and words.lengths.tolist() == [3, 1, 0]
    assert words.data.dtype is wf.int64 and label.tolist() == [0, 1, 0]
    # Of equal lengths too, so that the form of a batch does not depend on what is in it.
    assert [w.tolist() for w in list_collate([{"ids": [1, 2]}, {"ids": [3, 4]}])["ids"]] == [[1, 2], [3, 4]]
    assert {w.dtype for w in list_collate([[1, 2], [0.5], [np.float32(1)]])} == {wf.float32}


def test_lists_of_other_fields_stack_as_ever():
    words, pair = pad_collate([([1], [1, 2]), ([2, 3], [3, 4])], fields=[0])
    assert isinstance(words, Padded) and [t.tolist() for t in pair] == [[1, 3], [2, 4]]
    tuples = list_collate([(1, 2), (3, 4)])
    assert [t.tolist() for t in tuples] == [[1, 3], [2, 4]]


@pytest.mark.parametrize("collate", [list_collate, pad_collate])
def test_trees_are_sent_to_the_plain_list(collate):
    samples = [((1, (2, 3)), 0), (((1, 2), 3), 1), ((4, 5, 6), 0)]
    for some in (samples[:2], samples[1:]):
        with pytest.raises((TypeError, RuntimeError), match="for trees give collate_fn=list"):
            collate(some)
    assert next(iter(DataLoader(samples, batch_size=2, collate_fn=list))) == samples[:2]


class Foreign:
    """A tensor of another library: all that is known of it is DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_tensors_of_other_libraries_are_taken():
    samples = [(Foreign(np.full(2, n, np.float32)), n) for n in range(3)]
    x, y = default_collate(samples)
    assert x.dtype is wf.float32 and x.tolist() == [[0, 0], [1, 1], [2, 2]] and y.tolist() == [0, 1, 2]
    samples = [Foreign(np.arange(n, dtype=np.float32)) for n in (1, 3)]
    assert pad_collate(samples).data.tolist() == [[0, 0, 0], [0, 1, 2]]
