"""wf.bfloat16 as users meet it: promotion, numbers, other libraries, files, models, compiled and mapped functions."""

import pickle
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.core.spec import BFLOAT16

B = wf.bfloat16


@pytest.mark.parametrize(
    ("other", "wanted"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int64", "bfloat16"),
     ("bool", "bfloat16"), ("bfloat16", "bfloat16")],
)  # fmt: skip
def test_promotion_is_pytorchs(other, wanted):
    other, wanted = getattr(wf, other), getattr(wf, wanted)
    assert wf.promote_types(B, other) is wf.promote_types(other, B) is wanted
    assert (wf.ones(2, dtype=B) + wf.ones(2, dtype=other)).dtype is wanted
    assert (wf.ones(2, dtype=B) + wf.ones((), dtype=other)).dtype is B or not wf.ones((), dtype=other).is_floating_point


def test_numbers_are_taken_as_they_are():
    """0.3 in bfloat16 is 0.30078125; computed with that, the last digit would differ."""
    x = wf.tensor([1.0, 3.0], dtype=B)
    for got, want in ((x + 0.3, [1.296875, 3.296875]), (x * 0.3, [0.30078125, 0.8984375]), (x / 3, [0.333984375, 1.0])):
        assert got.dtype is B and got.tolist() == want
    assert (wf.ones(1, dtype=wf.float16) * 1e5 / 1e5).item() == float("inf")


def test_limits_text_and_values():
    info = wf.finfo(B)
    assert (info.bits, info.eps, info.resolution, info.tiny) == (16, 2.0**-7, 0.01, 2.0**-126)
    assert repr(wf.tensor([1.5, 3.14159], dtype=B)) == "tensor([1.5000, 3.1406], dtype=wayfare.bfloat16)"
    assert wf.tensor(3.14159, dtype=B).item() == 3.140625
    assert wf.tensor([0.5], dtype=B).type() == "wayfare.BFloat16Tensor"
    wf.testing.assert_close(wf.tensor([1.0], dtype=B), wf.tensor([1.01], dtype=B))
    with pytest.raises(AssertionError):
        wf.testing.assert_close(wf.tensor([1.0], dtype=B), wf.tensor([1.05], dtype=B))


def test_long_sums_do_not_saturate():
    """In bfloat16 256 + 1 is 256."""
    for size in (1000, 100_000):
        assert wf.ones(size, dtype=B).sum().item() == pytest.approx(size, rel=2.0**-8)
    x = wf.ones(1, dtype=B, requires_grad=True)
    x.expand(5000).sum().backward()
    assert x.grad.item() == pytest.approx(5000, rel=2.0**-8)
    table = wf.zeros(2, 3, dtype=B, requires_grad=True)
    nn.functional.embedding(wf.zeros(1000, dtype=wf.int64), table).sum().backward()
    assert table.grad[0, 0].item() == 1000


def test_draws():
    x = wf.rand(100_000, dtype=B)
    assert x.dtype is B and x.min() >= 0 and x.max() < 1 and abs(x.float().mean().item() - 0.5) < 0.01
    assert abs(wf.randn(100_000, dtype=B).float().std().item() - 1) < 0.02
    assert set(wf.randint(0, 3, (100,), dtype=B).tolist()) == {0, 1, 2}
    y = wf.empty(10_000, dtype=B).uniform_(1, 2)
    assert y.min() >= 1 and y.max() < 2


def test_the_default_dtype():
    wf.set_default_dtype(B)
    try:
        assert wf.ones(2).dtype is wf.tensor(1.5).dtype is nn.Linear(2, 2).weight.dtype is B
    finally:
        wf.set_default_dtype(wf.float32)


def test_arrays_dlpack_and_pickle():
    x = wf.tensor([1.5, -2.0], dtype=B)
    assert x.numpy().dtype == BFLOAT16 and np.shares_memory(x.numpy(), x.numpy())
    assert wf.from_numpy(x.numpy()).dtype is B
    shared = wf.from_dlpack(x)
    assert shared.dtype is B
    shared[0] = 7
    assert x[0] == 7
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    torch = pytest.importorskip("torch", reason="the other side of DLPack")
    theirs = torch.from_dlpack(x)
    assert theirs.dtype is torch.bfloat16 and theirs.tolist() == x.tolist()
    ours = wf.from_dlpack(torch.tensor([1.5, 3.0], dtype=torch.bfloat16))
    assert ours.dtype is B and ours.tolist() == [1.5, 3.0]


def test_files(tmp_path):
    state = nn.Linear(3, 2).bfloat16().state_dict()
    wf.save(state, tmp_path / "w.safetensors")
    back = wf.load(tmp_path / "w.safetensors")
    assert all(back[k].dtype is B and wf.equal(back[k], v) for k, v in state.items())


def test_an_export_to_onnx_is_refused_and_a_program_is_not(tmp_path):
    model = nn.Linear(3, 2).bfloat16()
    x = wf.randn(4, 3).bfloat16()
    with pytest.raises(wf.errors.ExportError, match=r"bfloat16 cannot be exported to ONNX.*\.float\(\)"):
        wf.onnx.export(model, (x,), tmp_path / "m.onnx")
    wf.export(model, (x,), tmp_path / "m.wf")
    assert wf.equal(wf.load_program(tmp_path / "m.wf")(x), model(x))


def _model():
    wf.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)).bfloat16()


def _trained(optimiser, compiled):
    model = _model()
    opt = getattr(wf.optim, optimiser)(model.parameters(), lr=0.01)
    x, y = wf.randn(32, 16, dtype=B), wf.arange(32) % 4

    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss

    run = wf.compile(step) if compiled else step
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a replay that differs from Python would be told
        losses = [run(x, y).item() for _ in range(30)]
    assert all(p.dtype is B and p.grad.dtype is B for p in model.parameters())
    return losses, opt


@pytest.mark.parametrize("optimiser", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam"])
def test_optimisers_keep_their_state_in_bfloat16(optimiser):
    losses, opt = _trained(optimiser, compiled=False)
    assert losses[-1] <= losses[0]  # Adadelta hardly moves in 30 steps
    for state in opt.state_dict()["state"].values():
        assert all(v.dtype is B for v in state.values() if isinstance(v, wf.Tensor) and v.ndim)


def test_a_compiled_step_is_the_plain_one():
    plain, compiled = (_trained("Adam", compiled)[0] for compiled in (False, True))
    assert compiled == pytest.approx(plain, rel=0.05, abs=1e-3)


def test_mapped_sequences():
    wf.manual_seed(0)
    cell = nn.LSTMCell(4, 8).bfloat16()

    def last(steps):
        h = c = wf.zeros(8, dtype=B)
        for x in steps:
            h, c = cell(x, (h, c))
        return h

    examples = [wf.randn(n, 4, dtype=B) for n in (3, 5, 2, 4, 5, 3)]
    for one, mapped in zip([last(e) for e in examples], wf.map(last, examples), strict=True):
        assert mapped.dtype is B
        wf.testing.assert_close(mapped, one, rtol=0.02, atol=0.01)
    wf.stack(wf.map(last, examples)).sum().backward()
    assert cell.weight_ih.grad.dtype is B


def test_errors_of_mixed_dtypes_name_both_and_the_fix():
    narrow, wide, image = wf.ones(1, 2, 4).bfloat16(), wf.ones(1, 2, 4), wf.ones(1, 1, 2, 2)
    bag, share = wf.tensor([[0, 1]]), wf.ones(1, 2)
    functional = wf.nn.functional
    for call in (
        lambda: functional.scaled_dot_product_attention(narrow, wide, wide),
        lambda: functional.grid_sample(image.bfloat16(), wf.zeros(1, 1, 1, 2)),
        lambda: functional.embedding_bag(bag, narrow[0], per_sample_weights=share, mode="sum"),
        lambda: functional.conv1d(narrow, wf.ones(1, 2, 1).bfloat16(), wf.ones(1)),
    ):
        with pytest.raises(RuntimeError, match=r"(?s)(bfloat16.*float32|float32.*bfloat16).*Convert .* \.to\("):
            call()
    with pytest.raises(RuntimeError, match=r"prelu: bf16\[.*f32\[.*Convert one with \.to\("):
        functional.prelu(narrow, wf.ones(2))
