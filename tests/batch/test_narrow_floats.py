"""bfloat16 and float16 in `wf.map`: gradients have the dtype of what they belong to."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch.paths import choose
from wayfare.compiler.check.compare import Difference, same
from wayfare.testing import assert_close

FORMS: dict[str, Callable[[nn.Module, wf.Tensor], wf.Tensor]] = {
    "a row": lambda layer, x: layer(x.sum(0)),
    "rows": lambda layer, x: layer(x),
    "a function": lambda layer, x: (layer(x).tanh() + x.sigmoid()) * x.cos(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [wf.bfloat16, wf.float16])
@pytest.mark.parametrize("lengths", [[3] * 5, [1, 3, 0, 5, 2]], ids=["equal", "different"])
def test_gradients_of_weights_have_their_dtype(form: str, dtype: wf.dtype, lengths: list[int]) -> None:
    """They were float32 for bfloat16 weights, if their products had been put off to the end."""

    def run(batch: bool) -> list[wf.Tensor]:
        wf.manual_seed(0)
        layer = nn.Linear(4, 4).to(dtype)
        xs = [wf.randn(n, 4).to(dtype).requires_grad_() for n in lengths]
        results = wf.map(lambda x: FORMS[form](layer, x), xs, batch=batch)
        sum(result.sum() for result in results).backward()
        return [t.grad for t in [layer.weight, layer.bias, *xs]]

    for batched, looped in zip(run(True), run(False), strict=True):
        assert batched.dtype is dtype
        assert_close(batched, looped, atol=0.1, rtol=0.05)


def test_an_optimiser_takes_them() -> None:
    layer = nn.Linear(4, 4).to(wf.bfloat16)
    optimizer = wf.optim.SGD(layer.parameters(), lr=0.5)
    before = layer.weight.detach().float().numpy().copy()
    wf.stack(wf.map(layer, list(wf.ones(6, 4).to(wf.bfloat16)), batch=True)).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(layer.weight.detach().float().numpy(), before - 3, atol=0.02)


def test_a_path_under_autocast_is_not_refused_for_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is float32, but what it is made of was rounded to bfloat16: it differs by such a step."""
    monkeypatch.setattr(choose, "FIRST_MAPS", 1)
    wf.manual_seed(0)
    cell = nn.GRUCell(4, 4)

    def twice(x: wf.Tensor) -> wf.Tensor:
        with wf.autocast("cpu", dtype=wf.bfloat16):
            h = cell(x, cell(x))
            if h.sum() > 0:
                h = h * 2
        return h

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            wf.map(twice, list(wf.randn(12, 4)), batch=True)
    assert str(wf.batching.last()).startswith("along recorded paths: 12 examples")


def test_a_wrong_path_under_autocast_is_still_found() -> None:
    close = wf.tensor([1.0, 2.0])
    same("the result", close, close * 1.01, 2.0**-7)
    with pytest.raises(Difference):
        same("the result", close, close * 1.01)
    with pytest.raises(Difference):
        same("the result", close, close * 1.1, 2.0**-7)
