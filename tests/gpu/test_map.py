"""`wf.map` on a device: examples recorded there run in groups of launches, and give what the loop gives."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare import nn


def there(*shape, seed=0, dtype=np.float64):
    return wf.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype)).to("cuda")


def both(f, examples, parameters=(), tolerance=1e-7):
    """Values and gradients of the loop and of groups agree. Returns the statistics of the groups."""
    found = []
    for way in ("loop", "groups"):
        for p in parameters:
            p.grad = None
        wf.manual_seed(3)
        if way == "loop":
            made = wf.map(f, examples, batch=False)
        else:
            made = wf.map(f, examples, schedule=wf.batching.Agenda())
            stats = wf.batching.last()
        flat = [t for result in made for t in (result if isinstance(result, tuple) else (result,))]
        if any(t.requires_grad for t in flat):
            sum((k + 1) * t.sum() for k, t in enumerate(flat) if t.requires_grad).backward()
        values = [t.detach().cpu().numpy() for t in flat]
        grads = [None if p.grad is None else p.grad.cpu().numpy() for p in parameters]
        devices = [t.device for t in (*flat, *[p.grad for p in parameters if p.grad is not None])]
        found.append((values, grads, devices, [t.requires_grad for t in flat]))
    loop, groups = found
    assert loop[2:] == groups[2:]
    for mine, theirs in zip((*groups[0], *groups[1]), (*loop[0], *loop[1]), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)
    return stats


def trees(count, width, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)

    def tree(depth):
        if depth == 0 or rng.random() < 0.2:
            return wf.tensor(rng.standard_normal(width).astype(dtype)).to("cuda")
        return tree(depth - 1), tree(depth - 1)

    return [tree(int(rng.integers(1, 5))) for _ in range(count)]


DTYPES = pytest.mark.parametrize("dtype, tolerance", [(wf.float64, 1e-7), (wf.float32, 2e-4)], ids=["f64", "f32"])


@DTYPES
def test_trees_with_the_cell_of_the_library(cuda, dtype, tolerance):
    wf.manual_seed(0)
    cell = nn.BinaryTreeLSTMCell(3, 4).to("cuda", dtype)

    def state(tree):
        return cell(*map(state, tree)) if isinstance(tree, tuple) else cell.leaf(tree)

    examples = trees(6, 3, dtype=dtype.numpy)
    stats = both(lambda tree: state(tree)[0].square().sum(), examples, [*cell.parameters()], tolerance)
    assert stats.groups < stats.nodes / 3, str(stats)


@DTYPES
def test_trees_with_a_function_as_cell(cuda, dtype, tolerance):
    wf.manual_seed(0)
    weight = wf.randn(8, 4, device="cuda", dtype=dtype, requires_grad=True)

    def join(left, right):
        gate, new = (wf.cat([left, right]) @ weight), left * right
        return wf.tanh(gate) * 0.5 + wf.sigmoid(new) * left

    def state(tree):
        return join(*map(state, tree)) if isinstance(tree, tuple) else wf.tanh(tree)

    examples = trees(6, 4, dtype=dtype.numpy)
    stats = both(lambda tree: state(tree).sum(), examples, [weight], tolerance)
    assert stats.groups < stats.nodes / 3, str(stats)


@DTYPES
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_sequences_read_by_a_cell(cuda, dtype, tolerance, kind):
    wf.manual_seed(0)
    cell, head = getattr(nn, kind)(3, 4).to("cuda", dtype), nn.Linear(4, 1).to("cuda", dtype)

    def read(sequence):
        h = None
        for x in sequence:
            h = cell(x, h)
        return head(h[0] if isinstance(h, tuple) else h).sum()

    examples = [there(n, 3, seed=n, dtype=dtype.numpy) for n in (5, 2, 7, 1, 4)]
    stats = both(read, examples, [*cell.parameters(), *head.parameters()], tolerance)
    assert stats.groups < stats.nodes / 2, str(stats)


def test_a_while_on_a_value(cuda, counts):
    weight = there(4, 4, seed=1).requires_grad_()

    def settle(x):
        steps = 0
        while x.norm() > 1 and steps < 8:
            x, steps = wf.tanh(weight @ x) * 0.6, steps + 1
        return x

    stats = both(settle, [there(4, seed=s) for s in range(7)], [weight])
    assert stats.waits and stats.groups < stats.nodes


def test_a_model_of_graphs(cuda):
    wf.manual_seed(0)
    message, update = nn.Linear(3, 3).to("cuda", wf.float64), nn.GRUCell(3, 3).to("cuda", wf.float64)

    def run(graph):
        nodes, edges = graph
        for _ in range(2):
            nodes = [update(sum(message(nodes[j]) for j in edges[i]), nodes[i]) if edges[i] else nodes[i]
                     for i in range(len(nodes))]  # fmt: skip
        return wf.stack(nodes).mean()

    graphs = [([there(3, seed=10 * s + i) for i in range(3)], [[1], [0, 2], [1] if s % 2 else []]) for s in range(4)]
    both(run, graphs, [*message.parameters(), *update.parameters()])


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_embeddings_of_a_table_that_all_share(cuda, place):
    wf.manual_seed(0)
    table = nn.Embedding(10, 4).to("cuda", wf.float64)

    def run(words):
        whole = table(words.to("cuda"))
        one = table.weight[3] + table(wf.tensor(int(words.shape[0]), device="cuda"))
        return (whole.mean(0) * one).sum()

    examples = [wf.tensor([i, (3 * i) % 10, 1][: 1 + i % 3], device=place) for i in range(6)]
    both(run, examples, [table.weight])


def test_python_numbers_of_each_example(cuda):
    w = there(3, seed=1).requires_grad_()

    def run(x, k):
        return (w * x * k + k).sum()

    both(lambda pair: run(*pair), [(there(3, seed=s), 0.5 * s) for s in range(5)], [w])


def test_numbers_of_the_cpu_that_examples_compute(cuda):
    w, scale = there(3, seed=1).requires_grad_(), wf.tensor(0.5, dtype=wf.float64, requires_grad=True)

    def run(pair):
        x, k = pair
        factor = wf.tanh(scale * k)  # on the CPU
        return (w * x * factor).sum() * scale

    examples = [(there(3, seed=s), wf.tensor(0.3 * s, dtype=wf.float64)) for s in range(5)]
    both(run, examples, [w, scale])


def test_in_place_writes(cuda):
    w = there(4, seed=1).requires_grad_()

    def run(x):
        out = wf.zeros(4, device="cuda", dtype=wf.float64)
        out += x * w
        out[1:3] = out[1:3] * 2
        out.mul_(w)
        y = x.clone()
        y[0] = 7.0
        return (out * y).sum()

    both(run, [there(4, seed=s) for s in range(5)], [w])


def test_a_tensor_that_is_written_after_it_was_read(cuda):
    def run(x):
        own = wf.ones(3, device="cuda", dtype=wf.float64)
        before = own * x
        own.add_(1)
        return before + own

    both(run, [there(3, seed=s) for s in range(4)])


def test_an_error_in_one_example(cuda):
    def run(x):
        y = x * 2
        return (y @ wf.ones(4, device="cuda", dtype=wf.float64)).sum()

    examples = [there(4, seed=0), there(4, seed=1), there(3, seed=2), there(4, seed=3)]
    with pytest.raises(RuntimeError, match="example 2 of wf.map"):
        wf.map(run, examples, batch=True)
    assert wf.map(lambda x: x.sum(), examples, batch=True)[2].is_cuda


def test_an_error_that_an_example_catches(cuda):
    """The others go on, and read values that were computed together with the failed one."""

    def run(x):
        y = wf.tanh(x)
        try:
            return wf.linalg.cholesky(y.outer(y) + wf.eye(2, device="cuda", dtype=wf.float64) * x[0]).sum().item()
        except RuntimeError:
            return y.sum().item()

    examples = [wf.tensor([k - 2.0, 1.0], dtype=wf.float64, device="cuda") for k in range(5)]
    got = wf.map(run, examples, schedule=wf.batching.Agenda())
    assert got == pytest.approx([run(x) for x in examples]) and len(set(got)) == 5


def test_tensors_of_two_devices_meet_with_the_error_of_the_loop(cuda):
    with pytest.raises(RuntimeError, match=r"add: the tensors are on different devices.*test_map.py"):
        wf.map(lambda x: x * 2 + wf.ones(3, dtype=wf.float64), [there(3, seed=s) for s in range(3)], batch=True)


def test_an_index_out_of_range_is_found_when_a_value_is_read(cuda):
    table = there(5, 2)

    def run(i):
        return table[i].sum().item()

    text = r"an index is out of range .*, in an example of wf.map \(test_map.py:\d+\)"
    with pytest.raises(IndexError, match=text) as caught:
        wf.map(run, [wf.tensor([0], device="cuda"), wf.tensor([9], device="cuda")], batch=True)
    assert f"test_map.py:{run.__code__.co_firstlineno + 1}" in str(caught.value)
    assert table.sum().item()


@pytest.mark.parametrize("examples", [5, 1])
def test_dropout_and_random_numbers(cuda, examples):
    def run(x):
        return F.dropout(x, 0.5) + wf.rand(4, device="cuda", dtype=wf.float64) + F.dropout(x * 2, 0.3)

    both(run, [there(4, seed=s) for s in range(examples)])


def test_second_derivatives(cuda):
    w = there(3, seed=1).requires_grad_()
    examples = [there(3, seed=s) for s in range(4)]

    def run(x):
        return wf.tanh(x * w).sum() ** 2

    found = []
    for batch in (False, True):
        (g,) = wf.autograd.grad(sum(wf.map(run, examples, batch=batch)), w, create_graph=True)
        found.append((g.detach().cpu().numpy(), *[t.cpu().numpy() for t in wf.autograd.grad(g.square().sum(), w)]))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7)


def test_gradients_inside_and_of_inputs(cuda):
    w = there(3, seed=1)

    def run(x):
        x = x.detach().requires_grad_()
        (g,) = wf.autograd.grad(wf.tanh(x * w).sum(), x)
        return g

    both(run, [there(3, seed=s) for s in range(4)])
    inputs = [there(3, seed=s).requires_grad_() for s in range(4)]
    both(lambda x: (wf.tanh(x * w) * x).sum(), inputs, inputs)


def test_moving_between_devices_inside(cuda, counts):
    w = there(3, seed=1).requires_grad_()

    def run(x):
        here = (x * w).cpu()
        return (here * 2).to("cuda") @ w

    both(run, [there(3, seed=s) for s in range(5)], [w])
    counts.reset()
    wf.map(run, [there(3, seed=s) for s in range(5)], schedule=wf.batching.Agenda())
    assert counts.to_host == 1  # all five at once


def test_examples_of_several_devices(two_gpus):
    def run(x):
        return wf.tanh(x * 2).sum() + x.mean()

    places = ["cuda:0", "cpu", "cuda:1", "cuda:0", "cpu", "cuda:1"]
    stats = both(run, [there(3, seed=s).to(place) for s, place in enumerate(places)])
    assert stats.groups < stats.nodes


def halve(x):
    while x.abs().max() > 1:
        x = x * 0.5
    return x.sum()


@pytest.mark.parametrize("options", [{}, {"batch": True}], ids=["chosen", "batched"])
def test_again_and_again(cuda, options):
    """Later maps run along recorded paths, as on the CPU."""
    for k in range(8):
        examples = [there(3, seed=10 * k + s) * s for s in range(8)]
        made = [y.item() for y in wf.map(halve, examples, **options)]
        assert made == pytest.approx([halve(x).item() for x in examples], 1e-7)
    if options:
        last = wf.batching.last()  # a number may be rounded so that its path is another one
        assert last.paths.examples >= 6 and "along recorded paths: " in str(last)


def test_again_and_again_with_weights_on_the_device(cuda):
    table = there(6, 3, seed=1)

    def run(k):
        x = table[int(k)]
        while x.norm() > 1:
            x = x * 0.6
        return x.sum()

    for _ in range(5):
        examples = [wf.tensor(k % 6) for k in range(9)]
        made = [y.item() for y in wf.map(run, examples, batch=True)]
        assert made == pytest.approx([run(x).item() for x in examples], 1e-7)


def test_workers_are_given_tensors_of_the_cpu(cuda):
    examples = [there(3, seed=s) for s in range(4)]
    with pytest.warns(UserWarning, match="runs in one process, because its tensors are on cuda:0"):
        made = wf.map(halve, examples, workers=2)
    assert [y.item() for y in made] == pytest.approx([halve(x).item() for x in examples])


def test_a_block_of_batching(cuda, counts):
    w, rows = there(4, 3, seed=1).requires_grad_(), [there(4, seed=s) for s in range(6)]
    with wf.batching() as block:
        made = [wf.tanh(x @ w).sum() for x in rows]
        first = made[0].item()
        more = [y * 2 for y in made]
    assert block.stats.groups == 4 and first == pytest.approx(wf.tanh(rows[0] @ w).sum().item())
    sum(more).backward()
    got = w.grad.cpu().numpy()
    w.grad = None
    sum(wf.tanh(x @ w).sum() * 2 for x in rows).backward()
    np.testing.assert_allclose(got, w.grad.cpu().numpy(), rtol=1e-7)


def test_modules_and_fused_functions_of_the_user(cuda):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.LayerNorm(3)

        def forward(self, x, y):
            start = wf.zeros(3, device=x.device, dtype=x.dtype)
            return wf.tanh(self.a(x) + self.b(y) + start)

    @wf.fused
    def mix(x, y):
        return wf.sigmoid(x) * y + x.new_ones(3) * 0.5

    wf.manual_seed(0)
    cell = Cell().to("cuda", wf.float64)

    def run(rows):
        x = rows[0]
        for row in rows[1:]:
            x = mix(cell(x, row), x)
        return x.sum()

    examples = [[there(3, seed=7 * s + k) for k in range(1 + s % 4)] for s in range(8)]
    stats = both(run, examples, list(cell.parameters()))
    assert any(kind.name == "Cell" for kind in stats.kinds), stats


def test_gradients_of_some_examples_only(cuda):
    w = there(3, seed=1).requires_grad_()
    examples = [there(3, seed=s) for s in range(6)]

    def run(x):
        y = wf.tanh(x * w)
        return y.sum(), (y * w).sum() / (x[0] - examples[4][0]) ** 2  # infinite for one example

    found = []
    for batch in (False, True):
        w.grad = None
        made = wf.map(run, examples, batch=batch)
        (made[0][0] + made[1][1] + made[4][0] + made[5][1]).backward()
        found.append(w.grad.cpu().numpy())
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(*found, rtol=1e-7)


def test_hooks_on_what_examples_compute(cuda):
    w, seen = there(3, seed=1).requires_grad_(), []

    def run(x):
        y = x * w
        y.register_hook(lambda g: seen.append(g.device.type))
        return y.sum()

    both(run, [there(3, seed=s) for s in range(3)], [w])
    assert seen == ["cuda"] * 6


def test_bidirectional_lengths_and_stacks(cuda):
    """`stack` and `cat` of rows of one shape are a gather."""
    w = there(3, seed=1).requires_grad_()

    def run(rows):
        rows = [row * w for row in rows]
        return (wf.stack(rows).cumsum(0) * wf.cat(rows[::-1]).reshape(len(rows), 3)).sum()

    both(run, [[there(3, seed=9 * s + k) for k in range(2 + s % 2)] for s in range(6)], [w])


def test_printing_and_questions_inside(cuda, capsys):
    def run(x):
        y = x * 2
        print(y.device, y.is_cuda, y.shape, y)
        assert y.stride() == (1,) and y.is_contiguous() and y.new_zeros(2).is_cuda
        return y.to("cuda") + wf.zeros_like(y)

    both(run, [there(2, seed=s) for s in range(3)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[:3] == lines[3:] and all("cuda:0 True" in line for line in lines)


def test_views_and_transposed_tensors(cuda):
    w = there(4, 3, seed=1).requires_grad_()

    def run(x):
        y = (x @ w).T  # [3, 2]
        first, second = y.chunk(2, 1)
        return (first.reshape(3) * y[:, 1] + y.flatten()[:3]).sum() + second[1:, 0].exp().sum(), y.squeeze(0) * 2

    both(run, [there(2, 4, seed=s) for s in range(4)], [w])


def test_results_of_examples_are_tensors_of_their_own(cuda):
    made = wf.map(lambda x: x * 2, [there(3, seed=s) for s in range(4)], batch=True)
    after = [t.tolist() for t in made]
    made[1].zero_()
    assert made[0].tolist() == after[0] and made[2].tolist() == after[2] and made[1].tolist() == [0.0] * 3
    w = there(3, seed=9).requires_grad_()
    made = wf.map(lambda x: x * w, [there(3, seed=s) for s in range(3)], batch=True)
    squares = made[0].exp(), made[1].exp()
    with wf.no_grad():
        made[2].zero_()
    sum(squares).sum().backward()  # what they kept was not written
    assert w.grad is not None
