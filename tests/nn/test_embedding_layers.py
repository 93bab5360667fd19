"""Embedding and EmbeddingBag: look-ups, padding, norms, frequencies and gradients against NumPy."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError


def table(layer):
    return layer.weight.detach().numpy().copy()


def test_rows_and_their_gradient():
    layer = nn.Embedding(5, 3)
    index = np.array([[0, 4], [4, 4]])
    out = layer(wf.from_numpy(index))
    np.testing.assert_array_equal(out.detach().numpy(), table(layer)[index])
    out.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad.numpy()[:, 0], [1, 0, 0, 0, 3])


def test_the_padding_row_is_zero_and_stays():
    layer = nn.Embedding(5, 3, padding_idx=-2)
    assert layer.padding_idx == 3
    assert layer.weight[3].tolist() == [0, 0, 0]
    layer(wf.tensor([3, 3, 1])).sum().backward()
    assert layer.weight.grad.numpy()[:, 0].tolist() == [0, 1, 0, 0, 0]
    nn.init.ones_(layer.weight)
    layer.reset_parameters()
    assert layer.weight[3].tolist() == [0, 0, 0]


def test_long_rows_are_shortened_in_the_table_when_they_are_used():
    layer = nn.Embedding(4, 3, max_norm=1.0, norm_type=1.0)
    nn.init.ones_(layer.weight)
    layer(wf.tensor([2]))
    norms = np.abs(table(layer)).sum(1)
    np.testing.assert_allclose(norms, [3, 3, 1, 3], rtol=1e-6)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_divided_by_how_often_a_row_was_used(kind):
    layer = kind(5, 2, scale_grad_by_freq=True, **({"mode": "sum"} if kind is nn.EmbeddingBag else {}))
    layer(wf.tensor([[0, 2, 2], [1, 2, 1]])).sum().backward()
    assert layer.weight.grad.numpy()[:, 0].tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(("mode", "fold"), [("sum", np.sum), ("mean", np.mean), ("max", np.max)])
def test_bags(mode, fold):
    layer = nn.EmbeddingBag(6, 3, mode=mode)
    numbers = np.array([0, 5, 2, 2, 1])
    out = layer(wf.from_numpy(numbers), wf.tensor([0, 2, 2])).detach().numpy()
    rows = table(layer)
    np.testing.assert_allclose(out[0], fold(rows[[0, 5]], axis=0), rtol=1e-6)
    np.testing.assert_array_equal(out[1], 0)
    np.testing.assert_allclose(out[2], fold(rows[[2, 2, 1]], axis=0), rtol=1e-6)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_the_gradient_of_bags_is_divided_by_how_often_each_row_was_used(mode, padding):
    def grad(m, index, starts):
        weight = m.tensor(np.arange(12.0).reshape(6, 2), requires_grad=True)
        out = m.nn.functional.embedding_bag(
            m.tensor(index), weight, m.tensor(starts), mode=mode if mode == "mean" else "sum", padding_idx=padding,
            scale_grad_by_freq=True,
            per_sample_weights=m.arange(1.0, 1.0 + len(index)).double() if mode == "weighted" else None,
        )  # fmt: skip
        (out * m.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
        return weight.grad.numpy()

    index, starts = [1, 2, 1, 4, 2, 2, 1, 5], [0, 3, 3, 6]
    want = np.zeros((6, 2))
    for place, row in enumerate(index):
        bag = max(n for n, start in enumerate(starts) if start <= place)
        end = [*starts, len(index)][bag + 1]
        size = sum(row != padding for row in index[starts[bag] : end])
        factor = {"sum": 1, "mean": 1 / max(size, 1), "weighted": place + 1}[mode] / index.count(row)
        if row != padding:
            want[row] += factor * np.array([2 * bag + 1, 2 * bag + 2])
    np.testing.assert_allclose(grad(wf, index, starts), want)
    torch = pytest.importorskip("torch")
    # PyTorch 2.13 divides by the count of another row (their issue 190063), which shows when counts differ.
    same = [1, 2, 1, 4, 2, 4, 5, 5]
    np.testing.assert_allclose(grad(wf, same, starts), grad(torch, same, starts))


def test_bags_with_weights():
    layer = nn.EmbeddingBag(6, 3, mode="sum")
    weights = wf.tensor([[1.0, 2.0]], requires_grad=True)
    out = layer(wf.tensor([[4, 1]]), per_sample_weights=weights)
    rows = table(layer)
    np.testing.assert_allclose(out.detach().numpy()[0], rows[4] + 2 * rows[1], rtol=1e-6)
    out.sum().backward()
    np.testing.assert_allclose(weights.grad.numpy()[0], rows[[4, 1]].sum(1), rtol=1e-6)


def test_a_nan_in_the_padding_of_weighted_bags_reaches_no_gradient():
    """The padding counts for nothing, also where a plan cannot leave it out."""
    table = wf.tensor([[np.nan, 1.0], [3.0, 4.0]], requires_grad=True)
    weights = wf.tensor([[np.nan, 2.0, 0.5]], requires_grad=True)
    index = wf.tensor([[0, 1, 0]])

    def total(table, weights, index):
        bags = nn.functional.embedding_bag(index, table, mode="sum", padding_idx=0, per_sample_weights=weights)
        return bags.sum()

    for run in (total, *[wf.compile(total)] * 4):
        table.grad = weights.grad = None
        out = run(table, weights, index)
        out.backward()
        assert out.item() == 14
        assert table.grad.tolist() == [[0, 0], [2, 2]]
        assert weights.grad.tolist() == [[0, 7, 0]]


def test_a_given_table_is_taken_as_it_is():
    rows = wf.arange(6.0).reshape(3, 2)
    layer = nn.Embedding.from_pretrained(rows)
    assert not layer.weight.requires_grad
    assert (layer.num_embeddings, layer.embedding_dim) == (3, 2)
    rows[0, 0] = 9.0
    assert layer(wf.tensor([0])).tolist() == [[9, 1]]
    assert nn.Embedding.from_pretrained(rows, freeze=False, padding_idx=2).weight.requires_grad
    assert nn.EmbeddingBag.from_pretrained(rows, mode="sum")(wf.tensor([[1, 2]])).tolist() == [[6, 8]]


def test_an_empty_look_up():
    assert nn.Embedding(5, 3)(wf.zeros(2, 0, dtype=wf.int64)).shape == (2, 0, 3)


REFUSED = {
    "too large": (lambda: nn.Embedding(5, 3)(wf.tensor([1, 7, 5])), IndexRangeError,
                  r"largest index is 7, but the table has 5 rows, in Embedding\(5, 3\).*from 0 to 4"),
    "negative": (lambda: nn.Embedding(5, 3)(wf.tensor([-1])), IndexRangeError, "smallest index is -1.*5 rows"),
    "floats": (lambda: nn.Embedding(5, 3)(wf.ones(2)), DTypeError, "integer dtype"),
    "bag too large": (lambda: nn.EmbeddingBag(5, 3)(wf.tensor([[6]])), RuntimeError, "largest index is 6"),
    "largest by frequency": (lambda: nn.EmbeddingBag(5, 3, mode="max", scale_grad_by_freq=True)(wf.tensor([[1]])),
                             ArgumentError, "scale_grad_by_freq does not go with mode='max'.*mode='sum'"),
    "max_norm": (lambda: nn.Embedding(5, 3, max_norm=1.0)(wf.tensor([9])), IndexRangeError, "largest index is 9"),
    "padding": (lambda: nn.Embedding(5, 3, padding_idx=5), ArgumentError, "padding_idx 5 is out of range"),
    "table": (lambda: nn.Embedding(5, 3, _weight=wf.ones(3, 5)), ShapeError, r"f32\[3,5\] is not of shape \[5, 3\]"),
    "vector": (lambda: nn.Embedding.from_pretrained(wf.ones(3)), ShapeError, r"two dimensions, this is f32\[3\]"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()
