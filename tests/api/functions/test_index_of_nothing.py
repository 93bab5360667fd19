"""Index tensors where the indexed part is empty: as in PyTorch no number is out of range then, except in a dimension of
size 0."""

import pytest

import wayfare as wf

NONE = wf.zeros(0, dtype=wf.int64)

# A shape, an index, and the shape of the result in PyTorch 2.13.
EMPTY = [
    ((0, 1, 3), (slice(None), [1, 0]), (0, 2, 3)),
    ((0, 3), (slice(None), [5]), (0, 1)),
    ((2, 3, 0), (slice(None), [7, 0]), (2, 2, 0)),
    ((3, 0), ([7, 0],), (2, 0)),
    ((0, 2, 3), (slice(None), [5], [9]), (0, 1)),
    ((2, 0, 4), ([5], slice(None), [9]), (1, 0)),
    ((2, 3), (wf.tensor([5]), NONE), (0,)),
    ((0, 3), (NONE,), (0, 3)),
]
REFUSED = [
    ((2, 0, 3), (slice(None), [1, 0])),
    ((2, 0, 3), (slice(None), [-1])),
    ((0, 3), ([0],)),
    ((0, 2, 3), ([0], [5])),
    ((0, 0), ([0],)),
]


def mapped(function):
    return lambda x: wf.map(function, [x, x * 1, x * 2], batch=True)[1]


def several(function):
    return lambda x: wf.vmap(function)(wf.stack([x, x]))[1]


WAYS = [lambda function: function, wf.compile, mapped, several]


@pytest.mark.parametrize("way", WAYS, ids=["eager", "compiled", "mapped", "vmap"])
@pytest.mark.parametrize(("shape", "index", "result"), EMPTY)
def test_no_index_is_out_of_range_where_nothing_is_taken(shape, index, result, way):
    run = way(lambda x: (x * 1)[index])
    for _ in range(3):
        x = wf.zeros(*shape, requires_grad=True)
        out = run(x)
        assert tuple(out.shape) == result
        out.sum().backward()
        assert tuple(x.grad.shape) == shape


@pytest.mark.parametrize("way", WAYS, ids=["eager", "compiled", "mapped", "vmap"])
@pytest.mark.parametrize(("shape", "index", "result"), EMPTY)
def test_nothing_is_written(shape, index, result, way):
    def put(x):
        y = x * 1
        y[index] = 1.0
        return y

    for _ in range(3):
        assert tuple(way(put)(wf.zeros(*shape)).shape) == shape
        x = wf.zeros(*shape, requires_grad=True)
        way(put)(x).sum().backward()
        assert x.grad.tolist() == wf.ones(*shape).tolist()


@pytest.mark.parametrize("way", WAYS, ids=["eager", "compiled", "mapped", "vmap"])
@pytest.mark.parametrize(("shape", "index"), REFUSED)
def test_a_dimension_of_size_0_has_no_index(shape, index, way):
    def put(x):
        y = x * 1
        y[index] = 1.0
        return y

    for function in (lambda x: (x * 1)[index], put):
        with pytest.raises(IndexError, match="out of range for dimension . of size 0"):
            way(function)(wf.zeros(*shape))


def test_a_value_must_fit_where_nothing_is_written():
    for requires_grad in (False, True):
        x = wf.zeros(3, 0)
        with pytest.raises(wf.errors.ShapeError, match="does not fit the indexed part"):
            x[[7, 0]] = wf.zeros(5, 4, requires_grad=requires_grad)


def test_a_look_up_of_rows_refuses_it_anyway():
    wrong = wf.tensor([5])
    with pytest.raises(IndexError, match="index 5 is out of range"):
        wf.zeros(0, 3).index_select(1, wrong)
    with pytest.raises(IndexError, match="largest index is 5"):
        wf.nn.functional.embedding(wrong, wf.zeros(3, 0))


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0)])
def test_indices_that_do_not_fit_are_an_index_error(shape):
    x = wf.zeros(shape)
    index = wf.tensor([0, 1]), wf.tensor([0, 1, 2])
    reason = "out of range" if 0 in shape else "do not broadcast"
    with pytest.raises(IndexError, match=reason):
        x[index]
    with pytest.raises(IndexError, match=reason):
        x[index] = 1.0


@pytest.mark.parametrize("shape", [(3,), (3, 2), ()])
def test_a_source_of_nothing_has_a_gradient(shape):
    """A graph without edges: the source is in the graph, and its gradient is as empty as itself."""
    empty = (0, *shape[1:])
    index = wf.zeros(empty, dtype=wf.int64)
    calls = {red: lambda x, s, red=red: x.scatter_reduce(0, index, s, red) for red in ("sum", "prod", "mean", "amax")}
    calls |= {"add": lambda x, s: x.scatter_add(0, index, s), "set": lambda x, s: x.scatter(0, index, s)}
    for call in calls.values():
        x, source = wf.ones(shape, requires_grad=True), wf.ones(empty, requires_grad=True)
        gx, gs = wf.autograd.grad(call(x, source).sum(), (x, source))
        assert gs.shape == source.shape and bool((gx == 1).all())
    wide = wf.zeros((0, 9), dtype=wf.int64)  # sizes that do not matter where there is nothing
    assert wf.ones(3, 2).scatter_add(0, wide, wf.ones(0, 9, requires_grad=True)).shape == (3, 2)
