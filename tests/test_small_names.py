"""Small names that programs written for PyTorch use."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest

import wayfare as wf


def test_a_buffer_that_is_not_saved() -> None:
    class M(wf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = wf.nn.Buffer(wf.ones(2))
            self.scratch = wf.nn.Buffer(wf.zeros(2), persistent=False)

    m = M()
    for model in (m, deepcopy(m)):
        assert list(model.state_dict()) == ["kept"]
        assert [name for name, _ in model.named_buffers()] == ["kept", "scratch"]
    assert isinstance(m.scratch, wf.nn.Buffer) and not isinstance(m.scratch, wf.nn.Parameter)
    m.scratch = wf.ones(3)  # a tensor put in its place is no more saved than it was
    assert list(m.state_dict()) == ["kept"]
    copy = pickle.loads(pickle.dumps(wf.nn.Buffer(wf.ones(2), persistent=False)))
    other = M()
    other.kept2 = copy
    assert "kept2" not in other.state_dict()


def test_a_device_as_a_context() -> None:
    with wf.device("cpu") as device:
        assert wf.ones(2).device == device


def test_fans_and_old_names_of_init() -> None:
    torch = pytest.importorskip("torch")
    for shape in ((2, 3), (4, 3, 5), (2, 3, 4, 5)):
        ours = wf.nn.init._calculate_fan_in_and_fan_out(wf.ones(*shape))
        assert ours == torch.nn.init._calculate_fan_in_and_fan_out(torch.ones(*shape))
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        wf.nn.init._calculate_fan_in_and_fan_out(wf.ones(2))
    with pytest.warns(FutureWarning, match="kaiming_uniform_"):
        old = wf.nn.init.kaiming_uniform
    assert old is wf.nn.init.kaiming_uniform_
    with pytest.raises(AttributeError):
        wf.nn.init.kaiming


def test_names_for_type_hints_and_subclasses() -> None:
    assert issubclass(wf.optim.lr_scheduler.StepLR, wf.optim.lr_scheduler._LRScheduler)
    handle = wf.nn.Linear(1, 1).register_forward_hook(lambda *_: None)
    assert isinstance(handle, wf.utils.hooks.RemovableHandle)


def test_typename() -> None:
    torch = pytest.importorskip("torch")
    tensors = ((wf.ones(2), torch.ones(2)), (wf.ones(2).int(), torch.ones(2).int()))
    for ours, theirs in (*tensors, (3, 3), (len, len), ("a", "a")):
        assert wf.typename(ours) == torch.typename(theirs).replace("torch.", "wayfare.")
    assert wf.typename(wf.nn.Linear(1, 1)).endswith(".Linear")


def test_a_hook_on_several_tensors_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match="register_hook"):
        wf.autograd.graph.register_multi_grad_hook
