"""wf.autocast: which ops run in which dtype, nesting, weights cast once, and every way of running."""

import threading
import warnings

import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.op import REGISTRY

B, F32 = wf.bfloat16, wf.float32
LOWER = [name for name, op in REGISTRY.items() if op.autocast[0] == "lower"]


def _mlp():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def test_products_run_in_bfloat16_and_losses_in_float32():
    model, x = _mlp(), wf.randn(5, 8)
    with wf.autocast("cpu"):
        out = model(x)
        loss = nn.functional.cross_entropy(out, wf.zeros(5, dtype=wf.int64))
        assert (x @ x.T).dtype is B and (x + x).dtype is F32 and x.double().matmul(x.T.double()).dtype is wf.float64
    assert out.dtype is B and loss.dtype is F32
    loss.backward()
    assert all(p.grad.dtype is F32 for p in model.parameters())
    assert model(x).dtype is F32
    assert {"matmul", "linear", "conv", "attention", "lstm_sequence"} <= set(LOWER)


def test_every_policy_is_known_and_no_rule_is_named_twice():
    for op in REGISTRY.values():
        assert set(op.autocast) <= {"", "lower", "float32", "widest"} and len(op.autocast) == 2, op.name


def test_blocks_nest_and_end(monkeypatch):
    x = wf.randn(3, 3)
    assert not wf.is_autocast_enabled("cpu")
    with wf.autocast("cpu", dtype=wf.float16):
        assert (x @ x).dtype is wf.float16 and wf.get_autocast_dtype("cpu") is wf.float16
        with wf.autocast("cpu", enabled=False):
            assert (x @ x).dtype is F32 and not wf.is_autocast_enabled("cpu")
            with wf.autocast("cpu"):
                assert (x @ x).dtype is B
        assert (x @ x).dtype is wf.float16
        with wf.no_grad():
            assert (x @ x).dtype is wf.float16
    monkeypatch.setattr("wayfare.api.autocast.has_gpu", lambda: True)
    with wf.autocast("cuda"):  # another kind of device
        assert (x @ x).dtype is F32 and wf.is_autocast_enabled() and not wf.is_autocast_enabled("cpu")
    with pytest.raises(ZeroDivisionError), wf.autocast("cpu"):
        _ = 1 / 0
    assert (x @ x).dtype is F32


def test_a_decorator_and_the_switches():
    x = wf.randn(3, 3)

    @wf.amp.autocast("cpu")
    def product(x):
        return x @ x

    assert product(x).dtype is B and (x @ x).dtype is F32
    wf.set_autocast_dtype("cpu", wf.float16)
    wf.set_autocast_enabled("cpu", True)
    try:
        assert (x @ x).dtype is wf.float16 and wf.is_autocast_cpu_enabled()
    finally:
        wf.set_autocast_enabled("cpu", False)
        wf.set_autocast_dtype("cpu", B)
    assert (x @ x).dtype is F32


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="device_type must be 'cpu' or 'cuda'"):
        wf.autocast("tpu")
    with pytest.raises(TypeError, match=r"wf\.bfloat16 or wf\.float16, not in wayfare\.float64"):
        wf.autocast("cpu", dtype=wf.float64)




def _casts(run):
    """How many casts ran."""
    from wayfare.core.mode import Watcher, changed_mode

    class Counts(Watcher):
        count = 0

        def ran(self, op, inputs, outputs, attrs):
            self.count += op.name == "cast"

    watching = Counts()
    with changed_mode(watcher=watching):
        run()
    return watching.count


def test_a_weight_is_cast_once_in_a_block_and_again_when_it_was_written():
    weight, x = wf.randn(4, 4, requires_grad=True), wf.randn(4, 4).bfloat16()

    def twice(**options):
        with wf.autocast("cpu", **options):
            return (x @ weight).sum() + (x @ weight).sum()

    assert _casts(twice) == 1 and _casts(lambda: twice(cache_enabled=False)) == 2
    assert _casts(lambda: (twice(), twice())) == 2  # the next block casts again
    twice().backward()
    assert weight.grad.dtype is F32
    wf.testing.assert_close(weight.grad, 2 * x.float().sum(0)[:, None].expand(4, 4), rtol=0.02, atol=0.02)
    with wf.autocast("cpu"):
        before = x @ weight
        with wf.no_grad():
            weight.zero_()
        assert (x @ weight).abs().max() == 0 and before.abs().max() > 0


def test_a_weight_with_another_array_is_cast_again():
    weight = wf.ones(4, 4, requires_grad=True)
    with wf.autocast("cpu"):
        assert (wf.ones(1, 4) @ weight)[0, 0] == 4
        weight.data = wf.full((4, 4), 2.0)  # nothing was written
        assert (wf.ones(1, 4) @ weight)[0, 0] == 8


def test_a_weight_cast_under_no_grad_does_not_lose_the_gradient():
    weight, x = wf.randn(4, 4, requires_grad=True), wf.randn(4, 4)
    with wf.autocast("cpu"):
        with wf.no_grad():
            x @ weight
        (x @ weight).sum().backward()
    assert weight.grad is not None


def test_threads_have_their_own():
    found = []
    with wf.autocast("cpu"):
        other = threading.Thread(target=lambda: found.append((wf.ones(2, 2) @ wf.ones(2, 2)).dtype))
        other.start()
        other.join()
    assert found == [F32]


def test_a_checkpoint_runs_again_with_autocast():
    results = []
    for checkpointed in (False, True):
        model, x = _mlp(), wf.ones(5, 8)
        with wf.autocast("cpu"):
            out = wf.utils.checkpoint.checkpoint(model, x) if checkpointed else model(x)
            loss = out.float().square().sum()
        loss.backward()
        results.append([p.grad.clone() for p in model.parameters()])
    for plain, again in zip(*results, strict=True):
        assert wf.equal(plain, again)


@pytest.mark.parametrize("inside", [True, False])
def test_compiled_functions_follow_the_mode(inside):
    model, x = _mlp(), wf.randn(5, 8)

    @wf.compile
    def outputs(x):
        if inside:
            with wf.autocast("cpu"):
                return model(x)
        return model(x)

    for _ in range(6):
        if inside:
            assert outputs(x).dtype is B
        else:
            with wf.autocast("cpu"):
                low = outputs(x)
            high = outputs(x)
            assert low.dtype is B and high.dtype is F32
            wf.testing.assert_close(low.float(), high, rtol=0.05, atol=0.05)


def test_a_compiled_training_step():
    results = []
    for compiled in (False, True):
        model = _mlp()
        opt = wf.optim.Adam(model.parameters(), lr=0.01)
        x, y = wf.ones(6, 8), wf.arange(6) % 4

        def step(x, y, model=model, opt=opt):
            with wf.autocast("cpu"):
                loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        run = wf.compile(step) if compiled else step
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a replay that differs from Python would be told
            results.append([run(x, y).item() for _ in range(12)])
    assert results[1] == pytest.approx(results[0], rel=0.02)


@pytest.mark.parametrize("inside", [True, False])
def test_mapped_functions(inside):
    cell = nn.LSTMCell(4, 8)

    def last(steps):
        h = c = wf.zeros(8)
        for x in steps:
            if inside:
                with wf.autocast("cpu"):
                    h, c = cell(x, (h, c))
            else:
                h, c = cell(x, (h, c))
        return h

    examples = [wf.randn(n, 4) for n in (3, 5, 2, 4)]
    with wf.autocast("cpu", enabled=not inside):
        for one, mapped in zip([last(e) for e in examples], wf.map(last, examples), strict=True):
            assert mapped.dtype is one.dtype
            wf.testing.assert_close(mapped, one, rtol=0.02, atol=0.02)


def test_fused_functions_know_nothing_of_it():
    @wf.fused
    def halves(x, y):
        return (x * y).sum()

    x = wf.randn(300, 4)
    plain = halves(x, x)
    with wf.autocast("cpu"):
        assert halves(x, x).item() == plain.item()


def test_vmap():
    x, w = wf.randn(3, 4, 4), wf.randn(4, 4)
    with wf.autocast("cpu"):
        out = wf.vmap(lambda a: a @ w)(x)
    assert out.dtype is B


def test_custom_functions():
    seen = []

    class Product(wf.autograd.Function):
        @staticmethod
        @wf.amp.custom_fwd(device_type="cpu", cast_inputs=wf.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen.append((a.dtype, (a @ b).dtype))
            return a @ b

        @staticmethod
        @wf.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            seen.append((g @ b.T).dtype)
            return g @ b.T, a.T @ g

    a, b = wf.randn(2, 3).bfloat16().requires_grad_(), wf.randn(3, 2, requires_grad=True)
    with wf.autocast("cpu"):
        out = Product.apply(a, b)
        out.sum().backward()
    assert seen == [(F32, F32), F32] and a.grad.dtype is B and b.grad.dtype is F32


@pytest.mark.parametrize(("dtype", "scaled"), [(B, False), (wf.float16, True)])
@pytest.mark.parametrize("kind", ["mlp", "transformer", "lstm"])
def test_training_converges_as_in_float32(kind, dtype, scaled):
    def trained(mixed):
        wf.manual_seed(0)
        if kind == "mlp":
            model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 3))
        elif kind == "transformer":
            body = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            model = nn.Sequential(body, nn.Flatten(), nn.Linear(48, 3))
        else:
            recurrent, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)
            model = nn.ModuleList([recurrent, head])
            model.forward = lambda x: head(recurrent(x)[0][:, -1])
        opt = wf.optim.Adam(model.parameters(), lr=0.01)
        scaler = wf.amp.GradScaler("cpu", init_scale=1024.0, enabled=mixed and scaled)
        x, y = wf.randn(24, 6, 8), wf.arange(24) % 3
        losses = []
        for _ in range(60):
            with wf.autocast("cpu", dtype=dtype, enabled=mixed):
                loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        return losses

    plain, mixed = trained(False), trained(True)
    assert mixed[0] == pytest.approx(plain[0], rel=0.02)
    assert mixed[-1] < plain[0] / 5 and mixed[-1] == pytest.approx(plain[-1], rel=0.25, abs=0.03)


@pytest.mark.parametrize("device_type", ["tpu", 1, None, "cpus"])
def test_a_kind_of_device_that_is_none_is_refused(device_type):
    """Whichever class PyTorch raises there: a RuntimeError for a word, else a ValueError or a TypeError."""
    wrappers = [lambda kind, of=of: of(device_type=kind) for of in (wf.amp.custom_fwd, wf.amp.custom_bwd)]
    for call in (wf.autocast, wf.is_autocast_enabled, wf.get_autocast_dtype, *wrappers):
        for kind in (RuntimeError, ValueError, TypeError):
            with pytest.raises(kind, match="device_type must be 'cpu' or 'cuda'"):
                call(device_type)


def test_flags_are_bools():
    for options in ({"enabled": "no"}, {"enabled": 1}, {"cache_enabled": "no"}):
        with pytest.raises(TypeError, match="must be True or False, not"):
            wf.autocast("cpu", **options)
    with pytest.raises(TypeError, match="set_autocast_enabled: enabled must be True or False, not 'no'"):
        wf.set_autocast_enabled("cpu", "no")
    assert not wf.is_autocast_enabled("cpu")


def test_a_device_with_its_number_is_of_its_kind():
    with wf.autocast("cpu:0"):
        assert wf.is_autocast_enabled("cpu")


def test_autocast_for_a_gpu_that_is_not_there_is_off_and_says_so(monkeypatch):
    monkeypatch.setattr("wayfare.api.autocast.has_gpu", lambda: False)
    with pytest.warns(UserWarning, match=r"there is no GPU, so it is off; for the CPU write autocast\('cpu'\)"):
        block = wf.autocast("cuda")
    with block:
        assert not wf.is_autocast_enabled()


@pytest.mark.parametrize("dtype", [F32, B])
def test_linear_algebra_of_several_ops_is_in_float32_too(dtype):
    matrix = (wf.eye(3) * 2).to(dtype)
    b, tau = wf.ones(3, 1, dtype=dtype), wf.full((3,), 0.5, dtype=dtype)
    with wf.autocast("cpu"):
        made = [
            wf.logdet(matrix), wf.cholesky_solve(b, matrix), *wf.triangular_solve(b, matrix),
            wf.ormqr(matrix, tau, b), wf.linalg.householder_product(matrix, tau),
        ]  # fmt: skip
    assert [m.dtype for m in made] == [F32] * 6
