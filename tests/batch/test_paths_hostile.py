"""What a stranger may do between and inside maps whose examples run along recorded paths: the same as in the loop.

Each story is told twice, by `wf.map` and by `wf.map(…, batch=False)`; everything it yields must agree.
"""

import threading

import numpy as np
import pytest

import wayfare as wf
from wayfare.batch.paths import choose, functions

F = wf.nn.functional
STORIES = []


@pytest.fixture(autouse=True)
def planned_at_once(always_batched, monkeypatch):
    """Paths from the second map on, and blocks are planned when they are first run."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)
    monkeypatch.setattr(functions, "_BEFORE_PLAN", 0)


def story(tell):
    STORIES.append(tell)
    return tell


class Net(wf.nn.Module):
    """A `while` on a value, and what modules are made of."""

    def __init__(self, p=0.0):
        super().__init__()
        self.inner = wf.nn.Linear(4, 4)
        self.norm = wf.nn.LayerNorm(4)
        self.drop = wf.nn.Dropout(p)
        self.register_buffer("scale", wf.tensor([1.0, 1.1, 0.9, 1.0]))
        self.factor = 1.0
        self.most = 6

    def forward(self, x):
        turns = 0
        while x.abs().sum() > 0.3 and turns < self.most:
            x = self.drop(self.norm(self.inner(x).tanh()) * 0.5) * self.scale * self.factor * 0.6
            turns += 1
        return x.sum(), x


def net(**options):
    wf.manual_seed(0)
    return Net(**options).double()


def xs(count=10, size=4, seed=0, **options):
    numbers = np.random.default_rng(seed)
    return [wf.tensor(numbers.standard_normal(size), **options) for _ in range(count)]


def grads(model):
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def learn(way, model, examples):
    """The results of a map and its gradients."""
    results = way(model, examples)
    sum(total for total, _ in results).backward()
    return [t.detach() for pair in results for t in pair], grads(model)


@story
def weights_that_change(way):
    model, examples = net(), xs()
    for _ in range(4):
        yield learn(way, model, examples)
    for _ in range(3):
        with wf.no_grad():
            model.inner.weight.mul_(1.3)
            model.inner.bias[1] += 0.5
        yield learn(way, model, examples)
        model.inner.weight.data = model.inner.weight.data * 0.7
        yield learn(way, model, examples)
        model.scale.fill_(0.9)
        model.load_state_dict({name: value * 1.05 for name, value in model.state_dict().items()})
        yield learn(way, model, examples)


@story
def weights_written_before_backward(way):
    model, examples = net(), xs()
    for _ in range(5):
        results = way(model, examples)
        with wf.no_grad():
            model.inner.weight.mul_(1.1)
        try:
            sum(total for total, _ in results).backward()
            yield "went through"
        except wf.errors.InPlaceError:
            yield "refused"
        model.zero_grad()


@story
def attributes_of_modules(way):
    model, examples = net(), xs()
    for factor, most in [(1.0, 6)] * 4 + [(0.9, 6), (0.9, 6), (0.9, 2), (1.0, 2), (1.0, 6)]:
        model.factor, model.most = factor, most
        yield learn(way, model, examples)


@story
def surgery(way):
    model, examples = net(), xs()
    for _ in range(4):
        yield learn(way, model, examples)
    model.inner = wf.nn.Sequential(model.inner, wf.nn.Tanh())
    for _ in range(3):
        yield learn(way, model, examples)
    model.norm = wf.nn.Identity()
    for _ in range(3):
        yield learn(way, model, examples)
    model.inner[0].weight = wf.nn.Parameter(model.inner[0].weight.detach() * 2)
    for _ in range(3):
        yield learn(way, model, examples)


@story
def frozen_and_thawed(way):
    model, examples = net(), xs()
    for frozen in (False, False, False, True, True, False, False, True):
        model.inner.weight.requires_grad_(not frozen)
        yield learn(way, model, examples)


@story
def arguments_with_and_without_gradient(way):
    model = net()
    for needs in (False, False, False, True, True, True, False, True):
        examples = xs(requires_grad=needs)
        yield learn(way, model, examples)
        yield [x.grad for x in examples]


@story
def only_some_arguments_need_a_gradient(way):
    model = net()
    for _ in range(5):
        examples = xs()
        for x in examples[::2]:
            x.requires_grad_()
        yield learn(way, model, examples)
        yield [x.grad for x in examples]


@story
def training_and_evaluation(way):
    model, examples = net(p=0.5), xs()
    for training in (False, False, False, True, True, False, True, False):
        model.train(training)
        wf.manual_seed(3)
        yield learn(way, model, examples)


@story
def modes(way):
    model, examples = net(), xs()
    for context in (wf.enable_grad, wf.no_grad, wf.inference_mode, wf.enable_grad) * 3:
        with context():
            results = way(model, examples)
        yield [(t.detach(), t.requires_grad, t.is_inference()) for pair in results for t in pair]


@story
def no_grad_inside(way):
    w = wf.tensor([1.0, 2.0, 0.5, 1.5]).double().requires_grad_()

    def function(x):
        with wf.no_grad():
            scale = (x * w).abs().max()
        y = x * w / scale
        return (y * y).sum() if y.sum() > 0 else (y.detach() * w).sum()

    for _ in range(5):
        sum(way(function, xs())).backward()
        yield w.grad.clone()
        w.grad = None


@story
def hooks_of_parameters(way):
    model, examples = net(), xs()
    seen = []
    for _ in range(3):
        yield learn(way, model, examples)
    handle = model.inner.weight.register_hook(lambda g: seen.append(g.sum().item()) or g * 2)
    for _ in range(3):
        yield learn(way, model, examples)
    handle.remove()
    yield learn(way, model, examples)
    yield [round(value, 9) for value in seen]


@story
def hooks_of_modules(way):
    model, examples = net(), xs()
    seen = []
    for _ in range(3):
        yield learn(way, model, examples)
    handle = model.norm.register_forward_hook(lambda module, given, made: seen.append(made.shape) or made * 1.5)
    for _ in range(3):
        yield learn(way, model, examples)
    handle.remove()
    yield learn(way, model, examples)
    yield len(seen)


@story
def hooks_of_arguments_and_results(way):
    model = net()
    for _ in range(5):
        examples, seen = xs(requires_grad=True), {}
        examples[3].register_hook(lambda g, seen=seen: seen.setdefault("argument", g.clone()) * 3)
        results = way(model, examples)
        results[2][1].register_hook(lambda g, seen=seen: seen.setdefault("result", g.clone()) * 2)
        results[4][1].retain_grad()
        sum(total + x.sum() for total, x in results).backward()
        yield sorted(seen), list(seen["argument"]), list(seen["result"]), [x.grad for x in examples], grads(model)
        yield results[4][1].grad


@story
def writes_to_an_argument(way):
    def function(x):
        if x.sum() > 0:
            x.mul_(2)
        return x.sum()

    for _ in range(5):
        examples = xs()
        yield way(function, examples), examples


@story
def writes_to_results(way):
    model, examples = net(), xs()
    for _ in range(5):
        results = way(model, examples)
        for _, x in results:
            x.detach().add_(100)
        results[0][1].detach()[2] = 7
        yield [x.detach() for _, x in results]
        yield [total.detach() for total, _ in results]


@story
def memory_shared_with_numpy(way):
    model = net()
    arrays = [np.random.default_rng(i).standard_normal(4) for i in range(8)]
    examples = [wf.from_numpy(array) for array in arrays]
    for step in range(6):
        results = way(model, examples)
        before = [x.detach().clone() for _, x in results]
        for array in arrays:
            array *= 0.8 + 0.1 * step
        yield before, [x.detach() for _, x in results]


@story
def views_as_arguments(way):
    model = net()
    table = wf.tensor(np.random.default_rng(1).standard_normal((8, 4))).requires_grad_()
    for _ in range(5):
        yield learn(way, model, list(table)), table.grad.clone()
        table.grad = None
        yield learn(way, model, list(table.T.contiguous().T)), table.grad.clone()
        table.grad = None
        yield learn(way, model, list(table.T[:4].T.flip(0)))
        table.grad = None


@story
def errors_of_one_example(way):
    def function(x, index):
        if x.sum() > 0:
            return x[index]
        return F.nll_loss(x[None], index[None] % 4)

    indices = [wf.tensor(i % 4) for i in range(10)]
    for bad in (None, None, None, 7, 7, None, 3, 3, 3, 3, None, None):
        given = [wf.tensor(9) if i == bad else index for i, index in enumerate(indices)]
        try:
            yield way(function, xs(), given)
        except wf.errors.WayfareError as error:
            yield type(error).__name__, str(error).split("(")[0]


@story
def exceptions_raised_by_python(way):
    def function(x):
        if x.max() > 1.8:
            raise ValueError("too large")
        return x * 2 if x.sum() > 0 else x

    for seed in range(8):
        try:
            yield way(function, xs(seed=seed % 3))
        except ValueError as error:
            yield str(error)


@story
def closures_that_change(way):
    factor, box, table = 2.0, [1.0], {"a": wf.ones(4).double()}

    def function(x):
        y = x * factor + box[0] + table["a"]
        return y.sum() if y.max() > 1 else y.prod()

    for step in range(12):
        yield way(function, xs())
        if step % 4 == 3:
            factor += 1
        if step == 5:
            box[0] = 3.0
        if step == 8:
            table["a"] = table["a"] * 2
        if step == 10:
            table["a"].mul_(2)


@story
def random_numbers(way):
    def function(x):
        noise = wf.randn(4, dtype=wf.float64)
        x = x + noise
        while x.abs().max() > 1:
            x = x * wf.rand((), dtype=wf.float64)
        return F.dropout(x, 0.5)

    wf.manual_seed(5)
    for _ in range(5):
        yield way(function, xs())
    generator = wf.Generator().manual_seed(3)
    for _ in range(4):
        yield way(lambda x: x + wf.rand(4, generator=generator), xs())
    yield wf.rand(2)


@story
def nested_maps(way):
    model = net()

    def function(x):
        inner = way(model, [x, x * 2, x * 3, x * 4])
        total = sum(t for t, _ in inner)
        return total if total > 0 else total * 2

    for _ in range(5):
        sum(way(function, xs(5))).backward()
        yield grads(model)


@story
def other_lengths(way):
    model = net()

    def function(x):
        while x.abs().sum() > 1:
            x = x * 0.5
        return model(x[:4])[0]

    for seed in range(6):
        numbers = np.random.default_rng(seed)
        examples = [wf.tensor(numbers.standard_normal(4 + int(numbers.integers(4)))) for _ in range(16)]
        sum(way(function, examples)).backward()
        yield grads(model)


@story
def numbers_and_structures_as_arguments(way):
    w = wf.tensor(np.random.default_rng(3).standard_normal((4, 3))).requires_grad_()

    def function(example):
        parts, label, more = example["parts"], example["label"], example["more"]
        h = parts[0] + parts[1]
        while h.abs().sum() > 1:
            h = h * 0.6
        logits = (h @ w).log_softmax(-1)
        return -logits[label] * more[0]

    for seed in range(8):
        numbers = np.random.default_rng(seed)
        examples = [
            {"parts": xs(2, seed=int(numbers.integers(99))), "label": int(numbers.integers(3)), "more": (1.0, "a")}
            for _ in range(18)
        ]
        results = way(function, examples)
        sum(results).backward()
        yield [r.detach() for r in results], w.grad.clone()
        w.grad = None


@story
def views_as_results(way):
    def function(x):
        y = x * 2
        return (y[1:], y.reshape(2, 2), y) if x.sum() > 0 else (x[:3], x.reshape(2, 2), x.T)

    for _ in range(5):
        examples = xs(requires_grad=True)
        results = way(function, examples)
        for part, matrix, _ in results:
            (part.sum() + (matrix * matrix).sum()).backward(retain_graph=True)
        yield [t.detach() for triple in results for t in triple], [x.grad for x in examples]
        plain = way(function, xs())
        for part, _, _ in plain:
            part.add_(1)
        yield plain


@story
def partial_and_repeated_backward(way):
    model = net()
    for chosen in ([0], [1, 2], list(range(10)), [9, 0, 3, 4, 5], [0]):
        results = way(model, xs())
        sum(results[i][0] for i in chosen).backward(retain_graph=True)
        sum(results[i][0] for i in chosen[:2]).backward()
        yield grads(model)
        with pytest.raises(wf.errors.GraphError):
            results[chosen[0]][0].backward()


@story
def infinities(way):
    w = wf.tensor([1.0, 0.0]).double().requires_grad_()

    def function(x):
        y = (x * w).sqrt()
        if x[0] > 0.5:
            return y.sum()
        if x[0] > 0:
            return (x * w).sum()
        return (x / w).sum()

    for _ in range(5):
        values = [0.7, 0.2, 0.9, 0.0, 0.3, 0.6, 0.1]
        results = way(function, [wf.tensor([v, 0.0]).double() for v in values])
        sum(results[i] for i in (1, 4, 6)).backward(retain_graph=True)
        yield w.grad.clone()
        w.grad = None
        sum(results).backward()
        yield w.grad.clone(), [r.detach() for r in results]
        w.grad = None


@story
def second_derivatives(way):
    model = net()
    for _ in range(5):
        examples = xs(requires_grad=True)
        total = sum(t for t, _ in way(model, examples))
        first = wf.autograd.grad(total, [*examples, *model.parameters()], create_graph=True)
        sum((g * g).sum() for g in first).backward()
        yield [g.detach() for g in first], grads(model), [x.grad for x in examples]


@story
def counters_of_the_module(way):
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)[0] * self.calls

    wf.manual_seed(0)
    model = Counting().double()
    for _ in range(4):
        yield [t.detach() for t in way(model, xs())], model.calls


@story
def what_is_read_as_a_number(way):
    def function(x):
        count = int(x.abs().sum())
        for _ in range(count):
            x = x + x.argmax().item() * 0.1
        return x.sum().item() if count > 2 else x

    for seed in range(6):
        yield way(function, xs(seed=seed % 2))


@story
def equal_objects_for_all_examples(way):
    model, x = net(), xs(1, requires_grad=True)[0]
    for _ in range(4):
        yield learn(way, model, [x] * 6), x.grad.clone()
        x.grad = None


@story
def a_weight_is_also_an_example(way):
    w = wf.tensor([1.0, 0.5, -1.0, 2.0]).double().requires_grad_()

    def function(x):
        return (x * w).sum() if x.sum() > 0 else (x + w).prod()

    for _ in range(5):
        sum(way(function, [w, *xs(5), w, w * 2])).backward()
        yield w.grad.clone()
        w.grad = None


def told(tell, batch):
    def way(function, *columns):
        return wf.map(function, *columns) if batch else wf.map(function, *columns, batch=False)

    wf.manual_seed(1)
    return list(tell(way))


def assert_same(one, other, where):
    assert type(one) is type(other), f"{where}: {one} and {other}"
    if isinstance(one, wf.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, where
        np.testing.assert_allclose(one.detach().numpy(), other.detach().numpy(), 1e-9, 1e-10, err_msg=where)
        assert one.requires_grad == other.requires_grad, where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9), where
    else:
        assert one == other, f"{where}: {one} and {other}"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__.replace("_", " "))
def test_a_story(tell):
    got, want = told(tell, True), told(tell, False)
    assert_same(got, want, tell.__name__)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_threads_map_one_model():
    model, examples = net(), xs()
    want = [t.detach() for t, _ in wf.map(model, examples, batch=False)]
    wrong = []

    def work():
        for _ in range(12):
            got = [t.detach() for t, _ in wf.map(model, examples)]
            wrong.extend([1 for a, b in zip(got, want, strict=True) if abs(a.item() - b.item()) > 1e-9])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("leaf", [
    lambda y: y.detach().requires_grad_(), lambda y: y.data.requires_grad_(),
    lambda y: y.detach().clone().requires_grad_(),
])  # fmt: skip
def test_a_new_leaf_inside_an_example_stops_the_gradient(leaf):
    w = wf.ones(3, requires_grad=True)

    def one(x):
        z = leaf(x * w)
        return (z * z * z).sum() + (x * w).sum()

    examples = [wf.ones(3) * k for k in range(1, 9)]
    for _ in range(6):
        w.grad = None
        sum(wf.map(one, examples, batch=True)).backward()
        assert w.grad.tolist() == [36.0] * 3
