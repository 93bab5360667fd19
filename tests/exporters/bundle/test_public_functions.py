"""Every public function, called in every way of a list that it takes: what is exported can be read and gives the same.

`WAYFARE_EXPORTED_CALLS=1000` tries all calls of each function; without it two of each are tried.
"""

import inspect
import os
import random
import warnings

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import ExportError

CALLS = int(os.environ.get("WAYFARE_EXPORTED_CALLS", "2"))
INPUTS = {
    "vector": lambda: wf.rand(5) * 0.8 + 0.1,
    "matrix": lambda: wf.rand(3, 4) * 0.8 + 0.1,
    "square": lambda: wf.eye(4) * 2 + wf.rand(4, 4) * 0.1,
    "integers": lambda: wf.randint(0, 4, (3, 4)),
    "images": lambda: wf.rand(2, 3, 8, 8),
    "double": lambda: (wf.rand(4, 4) * 0.8).double(),
    "bools": lambda: wf.rand(3, 4) > 0.5,
    "half": lambda: wf.rand(3, 4).half(),
}
WAYS = [
    lambda f, x: f(x), lambda f, x: f(x, x), lambda f, x: f(x, 0), lambda f, x: f(x, 1), lambda f, x: f(x, 2),
    lambda f, x: f(x, x, x), lambda f, x: f(x, 0, 1), lambda f, x: f([x, x]), lambda f, x: f(x, (0,)),
    lambda f, x: f(x, (1, 1)), lambda f, x: f(x, 0.5), lambda f, x: f(x, dim=1), lambda f, x: f(x, 2, 1),
]  # fmt: skip
# What is no function of tensors, or gives what nobody wrote.
_OTHERS = ("seed", "save", "load", "export", "compile", "map", "manual", "set_", "get_", "enable", "from_", "tensor",
           "as_tensor", "is_", "to_", "share", "numpy", "tolist", "item", "register", "backward", "requires", "retain",
           "data_ptr", "graph", "fused", "vmap", "grad", "jac", "hess", "vjp", "jvp", "func", "default", "new_empty",
           "empty", "dlpack", "share_memory")  # fmt: skip


def _functions():
    spaces = {"wf": wf, "linalg": wf.linalg, "functional": wf.nn.functional, "special": wf.special, "Tensor": wf.Tensor}
    for space, holder in spaces.items():
        for name in sorted(dir(holder)):
            if name[0].isupper() or name.startswith(("_", *_OTHERS)) or name.endswith("_"):
                continue
            f = getattr(holder, name, None)
            if callable(f) and not inspect.isclass(f) and not inspect.ismodule(f):
                yield pytest.param(f, id=f"{space}.{name}")


def _listed(made):
    return list(made) if isinstance(made, tuple) else [made]


def _called(way, f, x):
    """What the call gives, if it is one that gives tensors."""
    try:
        made = _listed(way(f, x))
    except Exception:
        return None
    return made if made and all(isinstance(t, wf.Tensor) for t in made) else None


@pytest.mark.parametrize("f", list(_functions()))
def test_a_call_that_eager_takes_can_be_exported_and_read(f, tmp_path):
    wf.manual_seed(0)
    tried = [(kind, way) for kind in INPUTS for way in WAYS]
    random.Random(getattr(f, "__name__", "")).shuffle(tried)
    left = CALLS
    for kind, way in tried:
        if not left:
            break
        x = INPUTS[kind]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = _called(way, f, x.clone())
            if want is None:
                continue
            left -= 1
            try:
                wf.export(lambda x, way=way: way(f, x), (x,), tmp_path / "a.wf")
            except ExportError as refused:
                assert not (tmp_path / "a.wf").exists(), refused
                continue
            made = _listed(wf.load_program(tmp_path / "a.wf", compiled=False)(x.clone()))
            (tmp_path / "a.wf").unlink()
        for a, b in zip(made, want, strict=True):
            assert a.dtype is b.dtype
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-4, equal_nan=True)
