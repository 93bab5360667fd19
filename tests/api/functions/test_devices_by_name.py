"""Devices as arguments, on a machine without a GPU: nothing that was named is left unread."""

import pytest

import wayfare as wf
from wayfare import nn


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"])
@pytest.mark.parametrize("device", [0, ""])
def test_a_false_value_names_a_device_too(name, device):
    with pytest.raises(RuntimeError):
        getattr(wf, name)(wf.ones(2), device=device)


@pytest.mark.parametrize("device", [0, ""])
def test_the_same_for_new_tensors(device):
    x = wf.ones(2)
    calls = [
        lambda: x.new_zeros(2, device=device), lambda: x.new_ones(2, device=device),
        lambda: x.new_full((2,), 1.0, device=device), lambda: x.new_tensor([1.0], device=device),
        lambda: wf.full_like(x, 1.0, device=device), lambda: wf.randint_like(x, 3, device=device),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RuntimeError):
            call()


@pytest.mark.parametrize("index", [-1, 1.5, True, "0", "cpu"])
def test_the_number_of_a_device_is_a_number(index):
    with pytest.raises(TypeError, match="is no device"):
        wf.device("cpu", index)


def test_a_name_without_its_number():
    with pytest.raises(TypeError, match=r"'cpu:' is no device .*Write 'cpu', 'cuda' or 'cuda:0'"):
        wf.device("cpu:")


def test_a_device_does_not_change():
    x = wf.ones(2)
    for name in ("type", "index", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(x.device, name, "cuda")
    assert str(wf.ones(2).device) == "cpu"


def test_to_reads_everything_it_is_given():
    x = wf.ones(2)
    with pytest.raises(RuntimeError, match="'tpu' is no device"):
        x.to("tpu", wf.float64)
    with pytest.raises(TypeError, match="cannot both be the dtype"):
        x.to(wf.float64, wf.float32)
    with pytest.raises(TypeError, match="there is no argument 'dvice'"):
        x.to(dvice="cpu")
    assert x.to("cpu", wf.float64, False, True).dtype is wf.float64
    assert x.to("float64").dtype is wf.float64 and x.to("cpu", dtype="float64").dtype is wf.float64
    assert x.to(device="cpu", dtype=wf.float64, non_blocking=True, copy=True).dtype is wf.float64


def test_cuda_is_no_way_to_the_cpu():
    for thing in (wf.ones(1), nn.Linear(1, 1)):
        with pytest.raises(RuntimeError, match=r"'cpu' is no GPU"):
            thing.cuda("cpu")
