"""Names of PyTorch that are not here: whoever asks for one is told what to write, and that exists."""

import importlib
import re

import pytest

import wayfare as wf
from wayfare.instead import LEFT_OUT

ALL = [(package, name) for package, names in LEFT_OUT.items() for name in names]


@pytest.mark.parametrize("package, name", ALL, ids=lambda part: part)
def test_a_name_that_is_left_out_says_what_to_write(package, name):
    module = importlib.import_module(package)
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=rf"^{re.escape(package)}\.{name}: .+"):
        getattr(module, name)


@pytest.mark.parametrize("package, name", ALL, ids=lambda part: part)
def test_what_is_advised_exists(package, name):
    advice = LEFT_OUT[package][name]
    for path in re.findall(r"\b(?:wf|nn)(?:\.\w+)+", advice):
        found = {"wf": wf, "nn": wf.nn}[path.partition(".")[0]]
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


@pytest.mark.parametrize("module", [wf, wf.nn, wf.nn.utils, wf.optim, wf.autograd], ids=lambda module: module.__name__)
def test_a_name_that_nobody_knows_is_pythons_own_error(module):
    for name in ("tenser", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"^module {module.__name__!r} has no attribute {name!r}$"):
            getattr(module, name)


def test_windows_of_the_old_names_are_the_periodic_ones():
    assert LEFT_OUT["wayfare"]["hann_window"] == "use wf.signal.windows.hann(n, sym=False)"
    wf.testing.assert_close(wf.signal.windows.hann(4, sym=False), wf.tensor([0.0, 0.5, 1.0, 0.5]))


def test_a_size_is_no_data_for_a_tensor():
    with pytest.raises(TypeError, match=r"Tensor: takes a list of numbers, not sizes .*wf\.empty\(2, 3\)"):
        wf.Tensor(2, 3)
    with pytest.raises(TypeError, match=r"wf\.empty\(3,\)"):
        wf.Tensor(3)
    assert wf.Tensor([3]).tolist() == [3.0] and wf.Tensor().shape == (0,)
