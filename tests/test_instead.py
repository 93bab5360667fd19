"""Names of PyTorch that are not here: whoever asks for one is told what to write, and that exists."""

import importlib
import re
import subprocess
import sys

import pytest

import wayfare as wf
from wayfare.core.missing_names import LEFT_OUT, near_in

ALL = [(package, name) for package, names in LEFT_OUT.items() for name in names]


@pytest.mark.parametrize("package, name", ALL, ids=lambda part: part)
def test_a_name_that_is_left_out_says_what_to_write(package, name):
    module = wf.Tensor if package == "wayfare.Tensor" else importlib.import_module(package)
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=rf"^{re.escape(package)}\.{name}: .+"):
        getattr(module, name)


@pytest.mark.parametrize("package, name", [pair for pair in ALL if pair[0] != "wayfare.Tensor"])
@pytest.mark.parametrize("form", ["import {0}.{1}", "from {0} import {1}", "from {0}.{1} import something"])
def test_an_import_gives_the_same_advice(package, name, form):
    importlib.import_module(package)
    with pytest.raises(ImportError) as caught:
        exec(form.format(package, name))
    assert str(caught.value) == f"{package}.{name}: {LEFT_OUT[package][name]}"


@pytest.mark.parametrize("name", ["wayfare.tenser", "wayfare.nn.tenser", "wayfare.no.such", "wayfarer", "torchvision9"])
def test_other_modules_that_are_missing_are_pythons_own_error(name):
    with pytest.raises(ModuleNotFoundError, match="^No module named "):
        importlib.import_module(name)


def test_a_name_that_is_no_module_says_so():
    with pytest.raises(ModuleNotFoundError, match=r"^wayfare.random: it is a name .*from wayfare import random"):
        importlib.import_module("wayfare.random")


def test_names_left_out_of_tensors_are_not_listed():
    assert not set(dir(wf.ones(2))) & set(LEFT_OUT["wayfare.Tensor"])


@pytest.mark.parametrize("package, name", ALL, ids=lambda part: part)
def test_what_is_advised_exists(package, name):
    advice = LEFT_OUT[package][name]
    for path in re.findall(r"\b(?:wf|nn|t)(?:\.\w+)+", advice):
        found = {"wf": wf, "nn": wf.nn, "t": wf.Tensor}[path.partition(".")[0]]
        for part in path.split(".")[1:]:
            found = getattr(found, part)


@pytest.mark.parametrize("name, advice", [
    ("layer_norm", "use wf.nn.functional.layer_norm"),
    ("sigmoid_", "use the method: t.sigmoid_(…)"),
    ("detach", "use the method: t.detach(…)"),
])  # fmt: skip
def test_a_name_that_is_elsewhere_says_where(name, advice):
    with pytest.raises(AttributeError, match=re.escape(f"wayfare.{name}: {advice}")):
        getattr(wf, name)


@pytest.mark.parametrize("public", ["wayfare", "wayfare.nn", "wayfare.nn.utils", "wayfare.optim", "wayfare.autograd",
                                    "wayfare.utils", "wayfare.linalg"])  # fmt: skip
def test_a_name_that_nobody_knows_is_pythons_own_error(public):
    for name in ("xyzzy", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"^module {public!r} has no attribute {name!r}$"):
            getattr(importlib.import_module(public), name)


def test_windows_of_the_old_names_are_the_periodic_ones():
    assert LEFT_OUT["wayfare"]["hann_window"] == "use wf.signal.windows.hann(n, sym=False)"
    wf.testing.assert_close(wf.signal.windows.hann(4, sym=False), wf.tensor([0.0, 0.5, 1.0, 0.5]))


def test_a_size_is_no_data_for_a_tensor():
    with pytest.raises(TypeError, match=r"Tensor: takes a list of numbers, not sizes .*wf\.empty\(2, 3\)"):
        wf.Tensor(2, 3)
    with pytest.raises(TypeError, match=r"wf\.empty\(3,\)"):
        wf.Tensor(3)
    assert wf.Tensor([3]).tolist() == [3.0] and wf.Tensor().shape == (0,)


MEANT = {
    "tensor": {"sizes": "size", "dims": "dim", "argmx": "argmax", "unsquueze": "unsqueeze", "contigous": "contiguous",
               "detatch": "detach", "requires_gard": "requires_grad", "backwards": "backward", "viewas": "view_as",
               "shpae": "shape", "items": "item", "copy": "copy_", "gather_": "gather", "T_": "T", "dtypes": "dtype"},
    "wf": {"tenser": "tensor", "zeroes": "zeros", "arrange": "arange", "linespace": "linspace", "stak": "stack",
           "sigmod": "sigmoid", "no_gard": "no_grad", "manual_sed": "manual_seed", "Compile": "compile",
           "Tensors": "Tensor", "loads": "load", "metric": "metrics", "optimm": "optim"},
    "nn": {"Conv2D": "Conv2d", "Relu": "ReLU", "LeakyRelu": "LeakyReLU", "Lstm": "LSTM", "Sequental": "Sequential",
           "MultiHeadAttention": "MultiheadAttention", "CrossEntropy": "CrossEntropyLoss", "BatchNorm": "BatchNorm1d",
           "Embeddings": "Embedding", "ModulList": "ModuleList", "functionl": "functional"},
    "functional": {"logsoftmax": "log_softmax", "onehot": "one_hot", "cross_entropi": "cross_entropy"},
    "optim": {"Adamw": "AdamW", "RMSProp": "RMSprop", "AdaGrad": "Adagrad", "Optimiser": "Optimizer"},
    "layer": {"weights": "weight", "in_feature": "in_features", "parameter": "parameters", "forwards": "forward"},
}  # fmt: skip
# Names that have nothing to do with any that is there: no guess is better than a wrong one.
UNLIKE = {
    "tensor": "lenght zero_grad to_numpy as_numpy asarray append extend push keys head average avg stdev variance "
              "normalize count plus minus times matrix_multiply dot_product nans masked expand_dims astype men hash_it",
    "wf": "new arrary Linear Module Sequential Adam SGD DataLoader set_seed seed_all gpu is_cuda optimizers losses "
          "models layers utilities asnumpy hessian TensorDataset Parameter F os sys np math figure state page futures",
    "nn": "Dense BatchNormalization MSE L1 BCE NLL Residual Upsampling Pooling GlobalAvgPool2d Container Input Lambda",
    "functional": "mse l1 bce grad math",
    "optim": "Momentum Lion NovoGrad LAMB",
    "layer": "biases to_device optimizer kernel units",
}  # fmt: skip
OWNERS = {"tensor": wf.ones(2), "wf": wf, "nn": wf.nn, "functional": wf.nn.functional, "optim": wf.optim,
          "layer": wf.nn.Linear(2, 2)}  # fmt: skip


@pytest.mark.parametrize("where", OWNERS)
def test_a_slip_of_the_pen_is_recognised(where):
    assert {name: near_in(OWNERS[where], name) for name in MEANT[where]} == MEANT[where]


@pytest.mark.parametrize("where", OWNERS)
def test_no_guess_is_nonsense(where):
    names = UNLIKE[where].split()
    assert {name: near_in(OWNERS[where], name) for name in names} == dict.fromkeys(names)


def test_a_guess_is_part_of_the_sentence():
    with pytest.raises(AttributeError, match=r"^module 'wayfare' has no attribute 'tenser'. Did you mean 'tensor'\?$"):
        wf.tenser


@pytest.mark.parametrize("wrong, last", [
    ("wf.ones(2).new", "AttributeError: wayfare.Tensor.new: use t.new_empty, t.new_zeros, t.new_full or t.new_tensor"),
    ("wf.ones(2).nam", "AttributeError: 'Tensor' object has no attribute 'nam'"),
    ("wf.ones(2).argmx", "Did you mean 'argmax'?"),
    ("wf.hub", "AttributeError: wayfare.hub: there is no hub; wf.load reads safetensors files"),
    ("wf.nn.functional.grad", "AttributeError: module 'wayfare.nn.functional' has no attribute 'grad'"),
    ("[].apend", "AttributeError: 'list' object has no attribute 'apend'. Did you mean: 'append'?"),
])  # fmt: skip
def test_what_python_prints(wrong, last):
    done = subprocess.run([sys.executable, "-c", f"import wayfare as wf\n{wrong}"], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == last
