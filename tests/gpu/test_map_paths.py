"""Recorded paths of `wf.map` on a device: results and gradients are those of the loop, and a decision is one read."""

import numpy as np
import pytest

import wayfare as wf
from tests.batch.path_helpers import Halting, halting_examples
from wayfare.batch.paths import functions

TIMES = 9


@pytest.fixture(params=["ops", "plans"])
def way(request, monkeypatch):
    """Blocks run op by op at first, later by plans."""
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 0 if request.param == "plans" else 1 << 30)
    return request.param


def there(columns):
    return [[t.to("cuda") for t in column] for column in columns]


def numbers(t):
    return None if t is None else t.detach().cpu().numpy()


def along(function, *columns, times=TIMES):
    """The results of a map in which every example ran along recorded paths, and none was compared with Python."""
    for _ in range(times):
        wf.map(function, *columns, batch=True)
    for _ in range(8):
        found = wf.map(function, *columns, batch=True)
        stats = wf.batching.last().paths
        assert stats.failed is None, stats.failed
        if stats.examples == len(columns[0]) and not stats.checked:
            return found, stats
    raise AssertionError(str(wf.batching.last()))


def gradients(losses, parameters, weights=None):
    for p in parameters:
        p.grad = None
    total = wf.stack(losses)
    (total if weights is None else total * weights).sum().backward()
    return [numbers(p.grad) for p in parameters]


def same(mine, theirs, tolerance=1e-8):
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def halting(dtype=wf.float64, size=6):
    wf.manual_seed(0)
    return Halting(size).to("cuda", dtype)


def test_a_while_on_a_value(cuda, way):
    model = halting()
    examples = there(halting_examples())
    xs = examples[0]
    for x in xs:
        x.requires_grad_()
    parameters = [*model.parameters(), *xs]
    made, stats = along(model, *examples)
    assert stats.groups < 20 and "along recorded paths: 16 examples" in str(wf.batching.last())
    mine = gradients(made, parameters)
    loop = [model(*example) for example in zip(*examples, strict=True)]
    same([numbers(t) for t in made], [numbers(t) for t in loop])
    same(mine, gradients(loop, parameters))
    assert all(t.device.type == "cuda" for t in made)


def test_in_float32(cuda, way):
    model = halting(wf.float32, 8)
    xs, labels = halting_examples(size=8)
    examples = there([[x.float() for x in xs], labels])
    made, _ = along(model, *examples)
    mine = gradients(made, [*model.parameters()])
    loop = [model(*example) for example in zip(*examples, strict=True)]
    same([numbers(t) for t in made], [numbers(t) for t in loop], 1e-4)
    same(mine, gradients(loop, [*model.parameters()]), 1e-3)


def test_a_decision_is_one_read(cuda, counts):
    """For each group one copy to the host, whatever the number of examples."""
    model = halting()
    found = []
    for count in (6, 24):
        examples = there(halting_examples(count))
        along(model, *examples)
        counts.reset()
        made = wf.map(model, *examples, batch=True)
        stats = wf.batching.last().paths
        if stats.checked:
            made = wf.map(model, *examples, batch=True)
        reads = sum(1 for visit in wf.batching.last().paths.visits if visit.outcomes)
        assert counts.to_host <= reads + 1 and counts.synchronised == 0
        counts.reset()
        wf.stack(made).sum().backward()
        assert counts.to_host <= 2  # are the gradients finite, and were the labels in range?
        found.append(reads)
    assert found[1] < 2 * found[0]


def test_without_gradients(cuda, way):
    model = halting()
    examples = there(halting_examples())
    with wf.no_grad():
        made, _ = along(model, *examples)
        same([numbers(t) for t in made], [numbers(model(*e)) for e in zip(*examples, strict=True)])
    assert not made[0].requires_grad


def test_some_results_have_no_gradient(cuda, way):
    model = halting()
    examples = there(halting_examples())
    made, _ = along(model, *examples)
    loop = [model(*example) for example in zip(*examples, strict=True)]
    for chosen in (slice(0, 12), slice(3, 4)):
        parameters = [*model.parameters()]
        for p in parameters:
            p.grad = None
        grads = []
        for losses in (made, loop):
            found = wf.autograd.grad(wf.stack(losses[chosen]).sum(), parameters, retain_graph=True)
            grads.append([numbers(g) for g in found])
        same(*grads)


def test_infinite_numbers_of_some_do_not_reach_the_others(cuda, way):
    weight = wf.tensor([1.0, 2.0, 0.5], device="cuda", dtype=wf.float64).requires_grad_()

    def run(x):
        y = (x * weight).sum()
        if y > 0:
            return (x / x.sum() * weight).sum()
        return y * weight.sum()

    columns = there([[wf.tensor(v, dtype=wf.float64) for v in
                      ([1.0, 2, 3], [-1.0, -2, 0], [3.0, 2, -5], [2.0, 2, 2], [-3.0, 1, 0], [1.0, 0, 1])]])  # fmt: skip
    made, _ = along(run, *columns)
    loop = [run(x) for x in columns[0]]
    for losses in (made, loop):
        losses[:] = losses[:2] + losses[3:]  # the third is infinite
    same([numbers(t) for t in made], [numbers(t) for t in loop])
    same(gradients(made, [weight]), gradients(loop, [weight]))


def test_a_gradient_of_a_gradient(cuda, way):
    model = halting()
    examples = there(halting_examples(8))
    made, _ = along(model, *examples)
    parameters, found = [*model.parameters()], []
    for losses in (made, [model(*example) for example in zip(*examples, strict=True)]):
        grads = wf.autograd.grad(wf.stack(losses).sum(), parameters, create_graph=True)
        found.append([numbers(g) for g in wf.autograd.grad(sum(g.square().sum() for g in grads), parameters)])
    same(*found, tolerance=1e-6)


def test_examples_on_two_devices(cuda, way):
    """Equal functions of both are two: a group lies on one device."""
    weights = {"cpu": wf.tensor([0.5, -1.0, 2.0], dtype=wf.float64)}
    weights["cuda"] = weights["cpu"].to("cuda")

    def run(x):
        while x.abs().max() > 1:
            x = x * 0.5 + x.flip(0) * 0.1
        return x

    numbers_of = np.random.default_rng(0)
    xs = [wf.tensor(4 * numbers_of.standard_normal(3)).to(("cpu", "cuda")[k % 2]) for k in range(14)]
    made, _ = along(run, xs)
    assert [t.device for t in made] == [x.device for x in xs]
    same([numbers(t) for t in made], [numbers(run(x)) for x in xs])


def test_constants_and_views_of_arguments(cuda, way):
    def run(x, y):
        table = wf.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda", dtype=wf.float64)
        if x.sum() > 0:
            return {"made": table @ x[:2] + wf.arange(2, device="cuda") * 2.5, "given": y, "view": x[1:]}
        return {"made": x.reshape(2, 2).T, "given": x, "view": y * 0.5}

    numbers_of = np.random.default_rng(0)
    columns = there([[wf.tensor(numbers_of.standard_normal(4)) for _ in range(9)] for _ in range(2)])
    made, _ = along(run, *columns)
    for mine, theirs in zip(made, [run(*pair) for pair in zip(*columns, strict=True)], strict=True):
        assert list(mine) == list(theirs)
        for key, value in theirs.items():
            assert mine[key].stride() == value.stride() or mine[key].ndim < 2
            same([numbers(mine[key])], [numbers(value)])


def test_an_index_out_of_range_is_the_error_of_the_line(cuda):
    table = wf.tensor(np.arange(12.0).reshape(4, 3)).to("cuda")

    def run(i):
        row = table[i]
        return row * 2 if row.sum() > 12 else row.sum() * row

    examples = [wf.tensor([k % 4], device="cuda") for k in range(8)]
    along(run, examples)
    with pytest.raises(IndexError, match="4"):
        wf.map(run, [*examples, wf.tensor([7], device="cuda")], batch=True)[-1].tolist()


def test_a_check_from_before_is_not_lost(cuda):
    """The first decision reads the checks of all ops before it, also of those outside of the map."""

    def run(x):
        return x * 2 if x.sum() > 0 else x - 1

    xs = [wf.tensor(np.array([k - 3.5, 1.0])).to("cuda") for k in range(8)]
    along(run, xs)
    table = wf.tensor(np.arange(4.0)).to("cuda")
    table[wf.tensor([9], device="cuda")]
    with pytest.raises(IndexError):
        wf.map(run, xs, batch=True)


def test_new_weights_are_seen(cuda, way):
    model = halting()
    examples = there(halting_examples())
    along(model, *examples)
    with wf.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    made = wf.map(model, *examples, batch=True)
    same([numbers(t) for t in made], [numbers(model(*e)) for e in zip(*examples, strict=True)])


def test_a_write_to_a_weight_before_the_backward_pass_is_an_error(cuda):
    model = halting()
    examples = there(halting_examples())
    made, _ = along(model, *examples)
    with wf.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(wf.errors.InPlaceError):
        wf.stack(made).sum().backward()


def test_the_default_device_is_part_of_a_path(cuda):
    def run(x):
        fresh = wf.zeros(2, dtype=wf.float64)
        return fresh.device.type if x.sum() > 99 else (x * 2, fresh)

    for place in ("cpu", "cuda", "cpu"):
        with wf.device(place):
            xs = [wf.tensor([float(k), 1.0], dtype=wf.float64, device=place) for k in range(6)]
            for _ in range(4):
                made = wf.map(run, xs, batch=True)
            assert {t.device.type for pair in made for t in pair} == {place}
