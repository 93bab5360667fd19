"""Every entry of PyTorch's operator database that takes bfloat16 there and is found here agrees in bfloat16."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")

import torch

import wayfare as wf
from tests.oracle import policies
from tests.oracle.check import check_entry
from tests.oracle.entries import found

_TIES = "among the many equal numbers of bfloat16 each side chooses its own"
_CANCELS = "what remains when all terms cancel is rounding alone"
_STEPS = "a step function of the coordinates, which PyTorch computes in bfloat16"
KNOWN_DIFFERENCES = {
    "matrix_exp": "linear algebra here takes no narrow floats; of PyTorch's only this function does",
    **dict.fromkeys(("topk", "mode", "sort", "msort", "argsort"), _TIES),
    **dict.fromkeys(("corrcoef", "nn.functional.batch_norm", "nn.functional.cosine_similarity"), _CANCELS),
    **dict.fromkeys(("nn.functional.grid_sample", "grid_sampler_2d"), _STEPS),
    "logcumsumexp": "PyTorch's gradient is several times as far from the float32 one as ours",
}
ENTRIES = [
    entry
    for entry in found(wf)
    if torch.bfloat16 in entry.record.dtypes
    and entry.name not in policies.KNOWN_DIFFERENCES | KNOWN_DIFFERENCES
    and not policies.is_random(entry.name, {})
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_values_and_gradients(entry):
    outcome = check_entry(wf, entry, torch.bfloat16)
    assert not outcome.failures, outcome.verdict


def test_a_gradient_of_nextafter_goes_to_no_equal_number():
    """Found by the ties of bfloat16: where both are equal PyTorch gives neither a gradient."""
    for module in (torch, wf):
        a, b = (module.tensor([1.0, 2.0], requires_grad=True), module.tensor([1.0, 3.0], requires_grad=True))
        module.nextafter(a, b).sum().backward()
        assert (a.grad.tolist(), b.grad.tolist()) == ([0, 1], [0, 0])
