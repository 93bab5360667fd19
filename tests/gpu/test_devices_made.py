"""Every function and layer that makes tensors makes them on the device that it is given."""

import inspect
from contextlib import suppress

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.signal import windows

# What some windows ask for.
ASKED = {"general_cosine": {"a": [0.5, 0.5]}}
FACTORIES = {
    "zeros": lambda **o: wf.zeros(2, 3, **o), "ones": lambda **o: wf.ones(2, 3, **o),
    "empty": lambda **o: wf.empty(2, **o), "full": lambda **o: wf.full((2,), 1.5, **o),
    "rand": lambda **o: wf.rand(3, **o), "randn": lambda **o: wf.randn(3, **o),
    "randint": lambda **o: wf.randint(5, (3,), **o), "randperm": lambda **o: wf.randperm(4, **o),
    "normal": lambda **o: wf.normal(0.0, 1.0, (3,), **o), "arange": lambda **o: wf.arange(4, **o),
    "linspace": lambda **o: wf.linspace(0, 1, 3, **o), "logspace": lambda **o: wf.logspace(0, 1, 3, **o),
    "eye": lambda **o: wf.eye(3, **o), "tensor": lambda **o: wf.tensor([1.0, 2.0], **o),
    "as_tensor": lambda **o: wf.as_tensor(np.ones(2), **o), "asarray": lambda **o: wf.asarray([1, 2], **o),
    "scalar_tensor": lambda **o: wf.scalar_tensor(2.0, **o), "tril_indices": lambda **o: wf.tril_indices(3, 3, **o),
    "empty_strided": lambda **o: wf.empty_strided((2, 2), (1, 2), **o),
    "empty_permuted": lambda **o: wf.empty_permuted((2, 3), (1, 0), **o),
    "triu_indices": lambda **o: wf.triu_indices(3, 3, **o),
    **{name: lambda name=name, **o: getattr(windows, name)(5, **ASKED.get(name, {}), **o) for name in windows.__all__},
}  # fmt: skip
LIKE = {
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"), ()),
    "full_like": (3.0,), "randint_like": (9,),
}  # fmt: skip
# What new layers are given: the first that fits. Layers without tensors take no `device=`.
SIZES = ((4,), (4, 4), (4, 4, 1), (4, 4, 4))
OPTIONS = {
    "Transformer": {"nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "dim_feedforward": 4},
    **{f"InstanceNorm{axes}d": {"affine": True} for axes in (1, 2, 3)},
}  # fmt: skip


def test_the_lists_are_complete():
    functions = {name: getattr(wf, name) for name in wf.__all__ if inspect.isfunction(getattr(wf, name))}
    takes = {name for name, function in functions.items() if "device" in inspect.signature(function).parameters}
    takes -= {"from_dlpack", "set_default_device"}
    assert takes == (FACTORIES.keys() - set(windows.__all__)) | LIKE.keys()


CLASSES = {name: getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)}
LAYERS = [name for name, kind in CLASSES.items()
          if "device" in inspect.signature(kind).parameters and not name.endswith("Base")]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_a_device(cuda, name):
    def new(**options):
        for size in SIZES:
            with suppress(TypeError):
                inspect.signature(getattr(nn, name)).bind(*size)
                return getattr(nn, name)(*size, **OPTIONS.get(name, {}), **options)
        raise AssertionError(name)

    wf.manual_seed(1)
    there = new(device="cuda")
    wf.manual_seed(1)
    with wf.device("cuda"):
        inside = new()
    wf.manual_seed(1)
    here = new()
    assert here.state_dict()
    for key, value in here.state_dict().items():
        assert value.is_cpu and there.state_dict()[key].is_cuda and inside.state_dict()[key].is_cuda, key
        assert wf.equal(there.state_dict()[key].cpu(), value) and wf.equal(inside.state_dict()[key].cpu(), value), key
    here.to("cuda")
    assert all(t.is_cuda for t in here.state_dict().values())
    here.cpu()
    assert all(t.is_cpu for t in here.state_dict().values())


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_takes_a_device(cuda, name):
    make = FACTORIES[name]
    wf.manual_seed(3)
    there = make(device="cuda")
    assert there.device == wf.device("cuda", 0) and there.is_cuda and not there.is_cpu
    wf.manual_seed(3)
    here = make()
    assert there.dtype is here.dtype and there.shape == here.shape and here.is_cpu
    if not name.startswith("empty"):
        assert there.tolist() == here.tolist()
    with wf.device("cuda"):
        assert make().is_cuda
    assert make().is_cpu


@pytest.mark.parametrize("name", LIKE)
def test_a_tensor_like_another_is_on_its_device(cuda, name):
    x = wf.ones(2, 3, device="cuda")
    assert getattr(wf, name)(x, *LIKE[name]).device == x.device
    assert getattr(wf, name)(x, *LIKE[name], device="cpu").is_cpu
    with wf.device("cuda"):
        assert getattr(wf, name)(x.cpu(), *LIKE[name]).is_cpu


def test_new_methods_stay_on_the_device(cuda):
    x = wf.ones(2, device="cuda")
    assert x.new_zeros(3).is_cuda and x.new_tensor([1.0]).is_cuda and x.new_full((2,), 3.0).tolist() == [3.0, 3.0]
    assert x.new_ones(3).is_cuda and x.new_empty(3).is_cuda and x.new_empty_strided((2,), (1,)).is_cuda
    assert x.new_ones(3, device="cpu").is_cpu and x.new_tensor(x).is_cuda
