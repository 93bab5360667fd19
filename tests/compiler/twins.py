"""The same done with a function and with it compiled: what is seen of it, errors included, must be alike."""

import warnings

import numpy as np

import wayfare as wf
from tests.compiler.checks import numbers

CALLS = 4  # the first is recorded, the second planned, the others replayed


def twin(function, scenario, *, python=False):
    """`scenario(way)` for the function and compiled; with `python`, it is right that it is left to Python."""
    compiled = wf.compile(function)
    for _ in range(CALLS):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore" if python else "error", message="compile: .* runs as plain Python")
            same(seen(scenario, compiled), seen(scenario, function))
    assert bool(compiled._plain()) is python
    return compiled


def seen(scenario, way):
    try:
        return shown(scenario(way))
    except wf.errors.WayfareError as error:
        # Versions and lines may be counted from another place.
        return [type(error), error.args[0].split(":")[0].split(" on line ")[0] if "version" in str(error) else ""]


def shown(value):
    if isinstance(value, wf.Tensor):
        return np.array(value.detach().numpy())
    return [shown(v) for v in value] if isinstance(value, (tuple, list)) else value


def same(got, want):
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), (got, want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif isinstance(want, np.ndarray):
        assert isinstance(got, np.ndarray), (got, want)
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    else:
        assert type(got) is type(want) and got == want, (got, want)


def leaf(*shape, seed=0):
    return numbers(*shape, seed=seed, grad=True)
