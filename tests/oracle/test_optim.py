"""Every optimiser beside PyTorch's: the same parameters after a hundred steps, whatever the options; states go over."""

import itertools

import numpy as np
import pytest

import wayfare as wf

torch = pytest.importorskip("torch", reason="PyTorch is the referee")

STEPS = 100
SHAPES = [(4, 3), (5,), (), (2, 1, 3)]


@pytest.fixture(autouse=True)
def double_precision():
    """Counters such as NAdam's mu_product have PyTorch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def products(name, **options):
    for values in itertools.product(*options.values()):
        yield name, dict(zip(options, values, strict=True))


RUNS = [
    *products("SGD", momentum=(0, 0.9), dampening=(0, 0.3), weight_decay=(0, 0.1), maximize=(False, True)),
    *products("SGD", momentum=(0.5, 0.9), nesterov=(True,), weight_decay=(0, 0.1), maximize=(False, True)),
    *products("Adam", amsgrad=(False, True), weight_decay=(0, 0.1), maximize=(False, True),
              decoupled_weight_decay=(False, True)),
    *products("Adam", betas=((0.8, 0.95), (0.0, 0.5)), eps=(1e-3, 1e-8)),
    *products("AdamW", amsgrad=(False, True), weight_decay=(0, 0.1), maximize=(False, True)),
    *products("Adagrad", lr_decay=(0, 0.1), weight_decay=(0, 0.1), initial_accumulator_value=(0, 0.5),
              maximize=(False, True)),
    *products("Adadelta", rho=(0.9, 0.5), weight_decay=(0, 0.1), maximize=(False, True)),
    *products("RMSprop", alpha=(0.99, 0.5), momentum=(0, 0.9), centered=(False, True), weight_decay=(0, 0.1),
              maximize=(False, True)),
    *products("Adamax", betas=((0.9, 0.999), (0.5, 0.7)), weight_decay=(0, 0.1), maximize=(False, True)),
    *products("NAdam", momentum_decay=(4e-3, 0.1), weight_decay=(0, 0.1), decoupled_weight_decay=(False, True),
              maximize=(False, True)),
    *products("RAdam", betas=((0.9, 0.999), (0.5, 0.7)), weight_decay=(0, 0.1), decoupled_weight_decay=(False, True),
              maximize=(False, True)),
]  # fmt: skip
ALL = sorted({name for name, _ in RUNS})


class Both:
    """One optimiser of each side, on the same parameters; gradients are drawn, and those of `missing` left out."""

    def __init__(self, name, options, shapes=SHAPES, groups=None, seed=0, **more):
        self.rng = np.random.default_rng(seed)
        start = [self.rng.normal(size=s) for s in shapes]
        self.ours = [wf.tensor(a).requires_grad_() for a in start]
        self.theirs = [torch.tensor(a).requires_grad_() for a in start]
        self.name, self.options = name, options | more
        self.optimizers = [
            getattr(m.optim, name)(groups(params) if groups else params, **self.options)
            for m, params in ((wf, self.ours), (torch, self.theirs))
        ]

    def step(self, missing=()):
        for i, (p, q) in enumerate(zip(self.ours, self.theirs, strict=True)):
            grad = self.rng.normal(size=tuple(p.shape))
            p.grad = None if i in missing else wf.tensor(grad)
            q.grad = None if i in missing else torch.tensor(grad)
        for optimizer in self.optimizers:
            optimizer.step()

    def agree(self):
        for i, (p, q) in enumerate(zip(self.ours, self.theirs, strict=True)):
            np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), 1e-9, 1e-10, err_msg=f"parameter {i}")


@pytest.mark.parametrize(("name", "options"), RUNS, ids=str)
def test_a_hundred_steps(name, options):
    both = Both(name, options, lr=0.02)
    for _ in range(STEPS):
        both.step()
    both.agree()


@pytest.mark.parametrize("name", ALL)
def test_defaults_names_and_text(name):
    ours, theirs = Both(name, {}).optimizers
    assert ours.defaults.keys() == theirs.defaults.keys()
    assert repr(ours) == repr(theirs)
    for shared in ("lr", "eps", "betas", "weight_decay", "momentum"):
        assert ours.defaults.get(shared) == theirs.defaults.get(shared)


@pytest.mark.parametrize("name", [*ALL, "SparseAdam", "LBFGS"])
def test_signatures(name):
    import inspect

    ours, theirs = (inspect.signature(getattr(m.optim, name).__init__).parameters for m in (wf, torch))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


@pytest.mark.parametrize("name", ALL)
def test_parameter_groups_and_rates_that_change(name):
    def groups(params):
        return [{"params": params[:2], "lr": 0.05}, {"params": params[2], "weight_decay": 0.2}, {"params": params[3:]}]

    both = Both(name, {"lr": 0.01}, groups=groups)
    for step in range(30):
        for optimizer in both.optimizers:
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + step)
        both.step()
    both.agree()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("options", [{}, {"maximize": True, "weight_decay": 0.1}])
def test_gradients_that_are_missing_now_and_then(name, options):
    both = Both(name, options | ({"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}))
    for missing in [(0,), (), (1, 2), (0, 1, 2, 3), (3,), (), (0, 3)] * 3:
        both.step(missing)
    both.agree()


@pytest.mark.parametrize("name", [n for n in ALL if n != "Adagrad"])  # whose states PyTorch makes at construction only
def test_parameters_added_in_the_middle(name):
    both = Both(name, {"lr": 0.02})
    extra = both.rng.normal(size=(3, 3))
    for _ in range(5):
        both.step()
    both.ours.append(wf.tensor(extra).requires_grad_())
    both.theirs.append(torch.tensor(extra).requires_grad_())
    for optimizer, params in zip(both.optimizers, (both.ours, both.theirs), strict=True):
        optimizer.add_param_group({"params": params[-1:], "lr": 0.1})
    for _ in range(10):
        both.step()
    both.agree()


@pytest.mark.parametrize("name", ALL)
def test_a_rate_that_is_a_tensor(name):
    start = np.random.default_rng(0).normal(size=(3, 4))
    results = []
    for m in (wf, torch):
        p = m.tensor(start).requires_grad_()
        optimizer = getattr(m.optim, name)([p], lr=m.tensor(0.03, dtype=m.float64))
        for _ in range(5):
            p.grad = m.tensor(start) * 2
            optimizer.step()
        results.append(p.detach().numpy())
    np.testing.assert_allclose(*results, rtol=1e-10)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_precisions(name, dtype):
    rng = np.random.default_rng(1)
    start = rng.normal(size=(4, 5)).astype(dtype)
    p, q = wf.tensor(start).requires_grad_(), torch.tensor(start).requires_grad_()
    options = {"lr": 0.05} | ({"eps": 1e-3} if dtype == "float16" and name != "SGD" else {})
    ours, theirs = getattr(wf.optim, name)([p], **options), getattr(torch.optim, name)([q], foreach=False, **options)
    for _ in range(3):
        grad = rng.normal(size=(4, 5)).astype(dtype)
        p.grad, q.grad = wf.tensor(grad), torch.tensor(grad)
        ours.step()
        theirs.step()
    assert str(p.dtype).endswith(dtype)
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), tolerance, tolerance)


# -- states that go over -----------------------------------------------------------------------------------------------


def plain(value):
    """A state_dict of NumPy arrays and numbers only."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v) for v in value)
    return value.detach().numpy().copy() if isinstance(value, (wf.Tensor, torch.Tensor)) else value


def as_torch(value):
    if isinstance(value, dict):
        return {k: as_torch(v) for k, v in value.items()}
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


WITH_STATE = [
    ("SGD", {"momentum": 0.9, "dampening": 0.1}), ("SGD", {}), ("Adam", {"amsgrad": True}), ("AdamW", {}),
    ("Adagrad", {"lr_decay": 0.1}), ("Adadelta", {}), ("RMSprop", {"momentum": 0.5, "centered": True}), ("Adamax", {}),
    ("NAdam", {}), ("RAdam", {}),
]  # fmt: skip


def half_way(name, options):
    both = Both(name, options, lr=0.05)
    for missing in [(), (1,), (), (2,)]:
        both.step(missing)
    return both


def same_layout(ours, theirs):
    assert ours.keys() == theirs.keys() and ours["state"].keys() == theirs["state"].keys()
    for number, state in ours["state"].items():
        assert state.keys() == theirs["state"][number].keys()
        for name, value in state.items():
            np.testing.assert_allclose(value, theirs["state"][number][name], 1e-10, err_msg=name)
    assert ours["param_groups"] == theirs["param_groups"]


@pytest.mark.parametrize(("name", "options"), WITH_STATE, ids=str)
def test_state_dicts_are_alike(name, options):
    both = half_way(name, options)
    same_layout(*[plain(optimizer.state_dict()) for optimizer in both.optimizers])


@pytest.mark.parametrize(("name", "options"), WITH_STATE, ids=str)
@pytest.mark.parametrize("way", ["theirs to ours", "ours to theirs"])
def test_training_goes_on_with_a_state_of_the_other_side(name, options, way):
    both = half_way(name, options)
    ours, theirs = both.optimizers
    if way == "theirs to ours":
        fresh = getattr(wf.optim, name)(both.ours, lr=9.0, **options)
        fresh.load_state_dict(plain(theirs.state_dict()))
        both.optimizers[0] = fresh
    else:
        fresh = getattr(torch.optim, name)(both.theirs, lr=9.0, **options)
        saved = plain(ours.state_dict())
        fresh.load_state_dict({"state": as_torch(saved["state"]), "param_groups": saved["param_groups"]})
        both.optimizers[1] = fresh
    for _ in range(10):
        both.step()
    both.agree()


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {}), ("SGD", {"maximize": True}), ("Adagrad", {"lr_decay": 0.1}), ("SparseAdam", {}),
     ("SparseAdam", {"maximize": True, "betas": (0.5, 0.7), "eps": 1e-3})],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("looked_at", [False, True])
def test_rows_of_an_embedding(name, options, looked_at):
    rng = np.random.default_rng(2)
    table = rng.normal(size=(20, 3))
    p, q = wf.tensor(table).requires_grad_(), torch.tensor(table).requires_grad_()
    ours, theirs = getattr(wf.optim, name)([p], lr=0.1, **options), getattr(torch.optim, name)([q], lr=0.1, **options)
    for _ in range(20):
        index, weights = rng.integers(0, 20, (2, 3)), rng.normal(size=(2, 3, 3))
        ours.zero_grad()
        theirs.zero_grad()
        (wf.nn.functional.embedding(wf.tensor(index), p) * wf.tensor(weights)).sum().backward()
        (torch.nn.functional.embedding(torch.tensor(index), q, sparse=True) * torch.tensor(weights)).sum().backward()
        if looked_at:
            assert p.grad is not None  # makes it a whole tensor
        ours.step()
        theirs.step()
    np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), 1e-10)


# -- LBFGS -------------------------------------------------------------------------------------------------------------


def valley(m, x, y):
    """Rosenbrock's function of many variables, and a bowl for a second parameter."""
    return ((1 - x[:-1]) ** 2).sum() + 20 * ((x[1:] - x[:-1] ** 2) ** 2).sum() + (y * y * y.cosh()).sum()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("options", [{}, {"history_size": 3}, {"max_iter": 5}, {"max_iter": 8, "max_eval": 9}], ids=str)
def test_lbfgs_down_a_valley(search, options):
    rng = np.random.default_rng(3)
    start = rng.normal(size=4) * 0.5, rng.normal(size=(2, 1))
    lr = 0.02 if search is None else 1.0
    trails = []
    for m in (wf, torch):
        x, y = (m.tensor(a).requires_grad_() for a in start)
        optimizer = m.optim.LBFGS([x, y], lr=lr, line_search_fn=search, **options)
        trail = []

        def closure(m=m, x=x, y=y, optimizer=optimizer):
            optimizer.zero_grad()
            loss = valley(m, x, y)
            loss.backward()
            return loss

        for _ in range(6):
            loss = optimizer.step(closure)
            state = optimizer.state[x]
            trail.append([loss.item(), *x.tolist(), *y.flatten().tolist(), state["func_evals"], state["n_iter"]])
        trails.append(trail)
    np.testing.assert_allclose(*trails, rtol=1e-6, atol=1e-8)
    assert trails[0][-1][0] < trails[0][0][0]
