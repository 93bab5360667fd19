"""Guard lines of scripts do in Wayfare what they do in a PyTorch without a GPU."""

import pytest

import wayfare as wf

torch = pytest.importorskip("torch", reason="PyTorch is the referee")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this PyTorch has a GPU")


@pytest.mark.parametrize(
    "line",
    [
        "t.cuda.is_available()", "t.cuda.is_initialized()", "t.cuda.device_count()", "t.cuda.manual_seed(1)",
        "t.cuda.manual_seed_all(1)", "t.cuda.empty_cache()", "t.cuda.memory_allocated()",
        "t.cuda.max_memory_allocated()", "t.backends.cudnn.benchmark", "t.backends.cudnn.deterministic",
        "t.backends.cudnn.enabled", "t.backends.cudnn.allow_tf32", "t.backends.cudnn.is_available()",
        "t.backends.cudnn.version()", "t.backends.cuda.matmul.allow_tf32", "t.backends.cuda.is_built()",
        "t.use_deterministic_algorithms(False)", "t.set_float32_matmul_precision('highest')",
        "t.ones(1).is_cuda", "t.ones(1).is_pinned()",
    ],
)  # fmt: skip
def test_a_line_gives_what_pytorch_gives(line):
    theirs = eval(line, {"t": torch})
    ours = eval(line, {"t": wf})
    assert type(ours) is type(theirs) and ours == theirs


@pytest.mark.parametrize("line", ["t.cuda.synchronize()", "t.ones(1).cuda()", "t.nn.Linear(1, 1).cuda()"])
def test_a_line_that_pytorch_refuses_is_refused(line):
    with pytest.raises((AssertionError, RuntimeError)):
        eval(line, {"t": torch})
    with pytest.raises(wf.errors.OperationError):
        eval(line, {"t": wf})
