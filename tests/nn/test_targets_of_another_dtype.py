"""Targets in another floating dtype than the scores: the loss is computed in the dtype that holds both."""

import pytest

import wayfare as wf

F = wf.nn.functional
LOSSES = {
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "weighted": lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=wf.full((3,), 2.0, dtype=t.dtype)),
    "multilabel_soft_margin_loss": F.multilabel_soft_margin_loss,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    ("scores", "targets", "wanted"),
    [("bfloat16", "float32", "float32"), ("float16", "float32", "float32"), ("float32", "float64", "float64"),
     ("float32", "bfloat16", "float32"), ("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "int64", "bfloat16")],
)  # fmt: skip
def test_losses_of_scores_and_labels(name, scores, targets, wanted):
    x = wf.tensor([[0.5, -1.0, 2.0]], dtype=getattr(wf, scores), requires_grad=True)
    t = wf.tensor([[1, 0, 1]]).to(getattr(wf, targets))
    if name == "weighted" and targets == "int64":
        pytest.skip("its weights have the dtype of the targets")
    loss = LOSSES[name](x, t)
    assert loss.dtype is getattr(wf, wanted)
    exact = LOSSES[name](x.detach().double(), t.double()).item()
    assert loss.item() == pytest.approx(exact, rel=1e-6 if wanted.startswith("float") else 2.0**-8)
    loss.backward()
    assert x.grad.dtype is x.dtype
