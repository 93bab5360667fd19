"""The lines with which PyTorch scripts prepare for a GPU: they pass, or say in a sentence what to write."""

import importlib
import warnings

import pytest

import wayfare as wf
from wayfare.errors import OperationError


def test_seeding_and_freeing_a_gpu_does_nothing():
    wf.manual_seed(3)
    before = wf.get_rng_state()
    assert wf.cuda.manual_seed(1) is None and wf.cuda.manual_seed_all(1) is None and wf.cuda.empty_cache() is None
    assert wf.equal(wf.get_rng_state(), before)
    assert wf.cuda.memory_allocated() == wf.cuda.max_memory_allocated() == 0
    assert wf.cuda.is_initialized() is False and wf.cuda.is_bf16_supported() is False


def test_the_usual_choice_of_a_device_gives_the_cpu():
    kind = "cuda" if wf.cuda.is_available() else "mps" if wf.backends.mps.is_available() else "cpu"
    x = wf.ones(2).to(wf.device(kind), non_blocking=True)
    assert x.device == wf.device("cpu") and x.is_cuda is False
    assert wf.backends.mps.is_built() is wf.backends.cudnn.is_available() is wf.backends.cuda.is_built() is False


@pytest.mark.parametrize("name, default", [("benchmark", False), ("deterministic", False), ("enabled", True)])
def test_switches_of_cudnn_are_plain_attributes(name, default, monkeypatch):
    cudnn = importlib.import_module("wayfare.backends.cudnn")
    assert cudnn is wf.backends.cudnn and getattr(cudnn, name) is default
    monkeypatch.setattr(wf.backends.cudnn, name, not default)
    assert getattr(wf.backends.cudnn, name) is not default


def test_tf32_may_be_allowed(monkeypatch):
    monkeypatch.setattr(wf.backends.cuda.matmul, "allow_tf32", True)
    assert wf.backends.cuda.matmul.allow_tf32 is True


def test_determinism_and_precision_are_promised_already():
    assert wf.use_deterministic_algorithms(True) is None
    assert wf.use_deterministic_algorithms(False, warn_only=True) is None
    with pytest.raises(TypeError, match="mode must be a bool, not int"):
        wf.use_deterministic_algorithms(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wf.set_float32_matmul_precision("high") is None
    with pytest.warns(UserWarning, match="'hi' is not one of highest, high, medium") as caught:
        wf.set_float32_matmul_precision("hi")
    assert caught[0].filename == __file__


def test_pinning_gives_the_tensor_itself():
    x = wf.ones(2)
    assert x.pin_memory() is x and x.is_pinned() is False


@pytest.mark.parametrize("thing", [wf.ones(2), wf.nn.Linear(2, 2)], ids=["tensor", "module"])
def test_cuda_is_refused_with_a_sentence(thing):
    if wf.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OperationError, match=r"device: .*(pip install|'cpu')"):
        thing.cuda()


def test_waiting_for_a_gpu_is_refused_with_a_sentence():
    if wf.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OperationError, match=r"device: .*(pip install|'cpu')"):
        wf.cuda.synchronize()


@pytest.mark.parametrize(
    "name, dtype",
    [("FloatTensor", wf.float32), ("DoubleTensor", wf.float64), ("HalfTensor", wf.float16), ("LongTensor", wf.int64),
     ("IntTensor", wf.int32), ("ShortTensor", wf.int16), ("CharTensor", wf.int8), ("ByteTensor", wf.uint8),
     ("BoolTensor", wf.bool)],
)  # fmt: skip
def test_old_constructors_name_the_new_one(name, dtype):
    with pytest.raises(AttributeError, match=rf"wayfare\.{name}: use wf\.tensor\(data, dtype=") as caught:
        getattr(wf, name)
    advice = str(caught.value).partition("use ")[2].partition(", or")[0]
    made = eval(advice, {"wf": wf, "data": [1, 0]})
    assert made.dtype is dtype and made.type() == f"wayfare.{name}"


def test_older_names_of_mixed_precision_name_the_new_one():
    with pytest.raises(AttributeError, match=r"wayfare\.cuda\.amp: use wf\.amp"):
        wf.cuda.amp
    with pytest.raises(AttributeError, match=r"use wf\.amp\.GradScaler"):
        wf.GradScaler


def test_what_else_is_asked_of_cuda_gets_a_sentence():
    assert not hasattr(wf.cuda, "jiterator")
    with pytest.raises(AttributeError, match=r"wayfare\.cuda\.jiterator: it is not part of wf\.cuda"):
        wf.cuda.jiterator


def test_the_default_device_is_the_cpu():
    assert wf.set_default_device("cpu") is None and wf.set_default_device(None) is None
    assert wf.get_default_device() == wf.device("cpu")
    with pytest.raises(OperationError, match="'tpu' is no device that Wayfare has"):
        wf.set_default_device("tpu")


def test_a_tensor_says_that_it_is_dense_and_on_the_cpu():
    x = wf.ones(2)
    assert x.is_cpu is True and x.is_sparse is False and x.get_device() == -1
