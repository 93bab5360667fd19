"""Memory and time: what was recorded before a write sees the old numbers, and what comes after it the new ones.

Every test runs the same lines as a loop and batched, in maps and in blocks.
"""

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import differentiate, equal, numbers, vectors, weight
from wayfare import nn
from wayfare.errors import InPlaceError


def looped(function, *iterables):
    return wf.map(function, *iterables, batch=False)


def blocked(function, *iterables):
    with wf.batching():
        return [function(*example) for example in zip(*iterables, strict=True)]


def plain(function, *iterables):
    return [function(*example) for example in zip(*iterables, strict=True)]


# How to run things batched, and the loop that says what is right.
WAYS = {"map": (wf.map, looped), "block": (blocked, plain)}


def check(make, way):
    """`make()` gives a function, iterables, and tensors to look at afterwards; leaves among them are differentiated."""
    found = []
    for run in WAYS[way][::-1]:
        function, iterables, tensors = make()
        wf.manual_seed(1)
        results = run(function, *iterables)
        numbers_after = [t.detach().clone() for t in tensors]
        found.append([results, numbers_after, differentiate(results, [t for t in tensors if t.is_leaf])])
    equal(found[1], found[0])


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


def test_weights_written_between_two_uses(way):
    def make():
        w = numbers(3, 3)

        def function(x):
            before = x @ w
            w.mul_(0.5)
            middle = x @ w
            w[0] = 1.0
            return before, middle, x @ w

        return function, [vectors(1, grad=False)], [w]

    check(make, way)


@pytest.mark.parametrize("change", [
    lambda w: w.data.mul_(2), lambda w: w.detach().add_(1), lambda w: setattr(w, "data", w.data * 3),
    lambda w: w.data.copy_(wf.ones(3, 3)), lambda w: w.data[0].zero_(), lambda w: w.data.view(-1)[1:].fill_(2),
    lambda w: nn.init.constant_(w, 0.5),
], ids=["data", "detach", "set data", "copy", "row", "view", "init"])  # fmt: skip
def test_a_parameter_changed_without_recording(change, way):
    def make():
        layer = nn.Linear(3, 3, bias=False).double()
        with wf.no_grad():
            layer.weight.copy_(numbers(3, 3))

        def function(x):
            with wf.no_grad():
                before = layer(x)
                change(layer.weight)
                return before, layer(x), layer.weight.sum()

        return function, [vectors(1)], [layer.weight]

    check(make, way)


def test_an_optimiser_step_between_two_uses(way):
    def make():
        wf.manual_seed(0)
        model = nn.Linear(3, 3).double()
        opt = wf.optim.SGD(model.parameters(), lr=0.5)
        sum(model(x).sum() for x in vectors(2)).backward()

        def function(x):
            with wf.no_grad():
                before = model(x)
                opt.step()
                return before, model(x)

        return function, [vectors(1)], list(model.parameters())

    check(make, way)


def test_state_loaded_between_two_uses(way):
    def make():
        wf.manual_seed(0)
        model = nn.Linear(3, 3).double()
        other = {name: t * 2 for name, t in model.state_dict().items()}

        def function(x):
            with wf.no_grad():
                before = model(x)
                model.load_state_dict(other)
                return before, model(x)

        return function, [vectors(1)], list(model.parameters())

    check(make, way)


def test_parameters_frozen_and_thawed_on_the_way(way):
    def make():
        wf.manual_seed(0)
        model = nn.Linear(3, 3).double()
        xs = vectors()

        def function(x):
            first = model(x.detach())
            model.requires_grad_(False)
            second, third = model(x.detach()), model(x)
            model.requires_grad_(True)
            return first, second, third, model(x)

        return function, [xs], [*model.parameters(), *xs]

    check(make, way)


def test_a_buffer_that_numpy_refills(way):
    def make():
        buffer = np.zeros(3)

        def function(i):
            buffer[:] = i
            return wf.from_numpy(buffer) * 2, wf.from_numpy(buffer.copy()) + 1

        return function, [range(4)], []

    check(make, way)


def test_an_outer_sum_that_all_examples_add_to(way):
    def make():
        total, count = wf.zeros(3, dtype=wf.float64), wf.tensor(0)
        w = weight(3, 3)

        def function(x):
            nonlocal total
            total += (x @ w).detach()
            count.add_(1)
            return x @ w

        return function, [vectors()], [total, w]

    check(make, way)


def test_an_outer_sum_with_a_history(way):
    def make():
        w, xs = weight(3, 3), vectors()
        box = {"total": wf.zeros(3, dtype=wf.float64)}

        def function(x):
            box["total"] += (x @ w).tanh()
            return x @ w

        return function, [xs], [w, *xs], box

    found = []
    for run in WAYS[way][::-1]:
        function, iterables, leaves, box = make()
        results = run(function, *iterables)
        found.append([results, box["total"], differentiate([*results, box["total"]], leaves)])
    equal(found[1], found[0])


def test_an_outer_sum_survives_a_fault(way):
    total = wf.zeros(3, dtype=wf.float64)
    first = total

    def function(x, i):
        total.add_(x.detach())
        if i == 2:
            raise ValueError("in the middle")
        return total * 1

    with pytest.raises(ValueError, match="in the middle"):
        WAYS[way][0](function, vectors(), range(4))
    assert first is total and type(total) is wf.Tensor
    assert total.shape == (3,) and np.isfinite(total.numpy()).all()
    total.zero_()
    assert total.tolist() == [0, 0, 0]


def test_rows_of_an_outer_table_filled_by_examples(way):
    def make():
        table, xs = wf.zeros(4, 3, dtype=wf.float64), vectors()

        def function(x, i):
            table[i] = x * 2
            table[i, 1:] += 1
            return table[i] * x

        return function, [xs, range(4)], xs

    found = []
    for run in WAYS[way][::-1]:
        function, iterables, _ = make()
        results = run(function, *iterables)
        found.append([r.detach() for r in results])
    equal(found[1], found[0])


@pytest.mark.parametrize("lines", [
    "h = x * 1\na = h\nh += 1\nreturn h, a",
    "h = x * 1\nv = h[1:]\nh.mul_(2)\nreturn h, v",
    "h = x * 1\nv = h[1:]\nv.mul_(2)\nreturn h, v, h * v.sum()",
    "h = x * 1\nv = h.view(3, 1)\nw = v[0]\nw += 5\nh[2] = w.sum()\nreturn h, v, w",
    "h = x * 1\nd = h.detach()\nk = h * 2\nd.zero_()\nreturn h, d, k.detach()",
    "h = x + 0\nk = h * 2\nh.add_(1)\nreturn h, k",
    "h = wf.zeros(3, dtype=wf.float64)\nfor i in range(3):\n    h[i] = x[i] * 2\nreturn h",
    "h = wf.zeros(3, dtype=wf.float64)\nk = h + 1\nh += x\nk += h\nreturn h, k",
    "h = wf.empty(2, 3, dtype=wf.float64)\nh[0] = x\nh[1] = h[0] * 2\nreturn h.sum(0), h",
    "h = x.clone()\nh[h > 0] = 0\nreturn h",
    "h = x * 1\na, b = h.chunk(2)\na.mul_(3)\nreturn h, b",
    "h = x * 1\nfor r in h.unbind(0):\n    r = r * 2\nreturn h, r",
    "h = x * 1\nk = h.expand(2, 3)\nh.mul_(2)\nreturn k * 1, k",
    "h = x * 1\nk = h.reshape(-1)\nk.neg_()\nreturn h, k",
    "h = (x * 1)[None].mT\nh.mul_(2)\nreturn h, h.mT",
    "h = x * 1\nwith wf.no_grad():\n    h.mul_(2)\nreturn h * 1, h",
    "h = x * 1\nwith wf.no_grad():\n    v = h[0:2]\nh.add_(1)\nreturn h, v.detach()",
    "h = x.detach()\nk = h * 2\nreturn h, k",
    "h = x * 1\nh.data = x.detach() * 5\nreturn h.detach()",
    "h = x * 1\nk = h.to(wf.float64)\nk += 1\nreturn h, k",
    "h = x * 1\nk = h.contiguous()\nk += 1\nreturn h, k",
    "h = x * 1\nk = wf.add(h, 1, out=wf.empty(3, dtype=wf.float64)) if not h.requires_grad else h\nreturn k",
    "h = (x * 1).detach().requires_grad_()\nreturn h, h * 2",
    "h = x * 1\nh.requires_grad_()\nreturn h",
    "h = x * 1\nh.detach_()\nreturn h, h * 2",
    "h = x.float()\nh += x.double().sum()\nh *= 2\nreturn h",
    "h = (x * 0).long()\nh += 1\nh[0] = 7\nreturn h, h * x",
    "h = x * 1\nh.resize_(2) if False else h.squeeze_()\nreturn h, h.unsqueeze_(0) if not h.requires_grad else h",
    "h = wf.zeros(4, dtype=wf.float64)\nh.index_add_(0, wf.tensor([0, 1, 1]), x)\nreturn h",
    "h = wf.zeros(4, dtype=wf.float64)\nh.scatter_(0, wf.tensor([3, 1, 2]), x.detach())\nreturn h",
    "h = x * 1\nh, k = h + 1, h\nk += h\nreturn h, k",
    "h = [x * 1] * 2\nh[0] += 1\nreturn h",
    "h = x * 1\nh.fill_(2)\nreturn h, h.sum()",
    "h = x.detach() * 1\nk = h[0]\nh.normal_()\nreturn h, k",
    "h = x * 1\nk = h.numpy(force=True)\nm = h * 1\nk[0] = 9\nreturn m.detach(), h.detach()",
])  # fmt: skip
def test_lines_that_write(lines, way):
    names = {"wf": wf}
    exec("def function(x):\n" + "".join(f"    {line}\n" for line in lines.split("\n")), names)

    def make():
        xs = vectors()
        return names["function"], [xs], xs

    check(make, way)


def test_a_saved_tensor_changed_after_the_map_is_noticed(way):
    w = weight(3, 3)
    results = WAYS[way][0](lambda x: (x @ w).tanh(), vectors())
    with wf.no_grad():
        w.mul_(2)
    with pytest.raises(InPlaceError):
        sum(r.sum() for r in results).backward()


def test_each_result_can_be_differentiated_by_itself(way):
    found = []
    for run in WAYS[way][::-1]:
        w, xs = weight(3, 3), vectors()
        for loss in run(lambda x, w=w: (x @ w).tanh().sum(), xs):
            loss.backward()
        found.append([w.grad, [x.grad for x in xs]])
    equal(found[1], found[0])


def test_part_of_the_results_differentiated_and_the_rest_dropped(way):
    found = []
    for run in WAYS[way][::-1]:
        w, xs = weight(3, 3), vectors(6)
        results = run(lambda x, w=w: (x @ w).tanh().sum(), xs)
        (results[0] + results[3]).backward()
        found.append([w.grad, [x.grad for x in xs]])
    equal(found[1], found[0])


def test_numbers_of_single_elements_mixed_in_dtype(way):
    def make():
        xs = vectors()
        ks = [numbers(3, seed=40 + i, dtype="float32", grad=True) for i in range(4)]

        def function(x, k):
            s, t = x.sum(), k.sum()
            whole = (k > 0).sum()
            mixed = k * s, x * t, s * t, whole * k, whole + s, k.half() * t, t.long() * s
            return *mixed, wf.where(k > 0, x, 0), x * 2 > t

        return function, [xs, ks], [*xs, *ks]

    check(make, way)


def test_a_write_to_a_tensor_of_its_own_beside_views_of_weights_waits_for_nothing():
    w = weight(3, 3)

    def function(k):
        row = w[k % 3] * 2
        start = wf.zeros(3, dtype=wf.float64)
        start[0] = 1.0
        view = start[1:]
        first = start * row
        start[1] = 5.0
        return first + start + view.sum()

    results = wf.map(function, list(range(6)), batch=True)
    assert wf.batching.last().rounds <= 2
    equal(results, [function(k) for k in range(6)])
