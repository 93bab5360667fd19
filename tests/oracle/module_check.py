"""The same module in PyTorch and in Wayfare: text, state, outputs, gradients and buffers, step by step.

`check(torch_module, wf_module, *arrays, **call_kwargs)` compares two modules that are there already;
`check_module(name, args, kwargs, inputs)` builds `torch.nn.<name>` and `wf.nn.<name>` and checks them in float32 and
float64; `check_initialisation` compares the distributions of fresh parameters; `both_refuse` compares errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp

import wayfare as wf
from tests.oracle.compare import Tolerance, default_tolerance, difference, tensors_in

STEPS, LEARNING_RATE = 2, 0.1


def _agree(ours: Any, theirs: Any, tolerance: Tolerance | None, where: str) -> None:
    found = difference(ours, theirs, tolerance, where=where)
    assert found is None, found


def _tensors(m: Any, value: Any, grads: bool) -> Any:
    """Arrays, also inside of tuples, lists and dictionaries, as tensors of a library with memory of their own."""
    if isinstance(value, np.ndarray):
        tensor = m.from_numpy(value.copy())
        return tensor.requires_grad_() if grads and value.dtype.kind == "f" else tensor
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(m, item, grads) for item in value)
    if isinstance(value, dict):
        return {key: _tensors(m, item, grads) for key, item in value.items()}
    return value


def _scramble(module: Any) -> None:
    """Other numbers than zeros and ones in all parameters, so that none of them can be forgotten unnoticed."""
    rng = np.random.default_rng(7)
    for parameter in module.parameters():
        values = rng.uniform(-0.8, 0.8, tuple(parameter.shape)).astype(parameter.detach().numpy().dtype)
        parameter.data.copy_(torch.from_numpy(np.asarray(values)))


def _state(module: Any) -> dict[str, np.ndarray]:
    return {key: np.array(value.detach().numpy()) for key, value in module.state_dict().items()}


def _check_state(theirs: Any, ours: Any, tolerance: Tolerance | None, when: str) -> None:
    expected = theirs.state_dict()
    actual = ours.state_dict()
    assert list(actual) == list(expected), f"{when}: state_dict has {list(actual)} instead of {list(expected)}"
    for key in expected:
        _agree(actual[key], expected[key], tolerance, f"{when}: {key}")


def _weighted_sum(output: Any, rng: np.random.Generator, m: Any) -> Any:
    """One number that hangs on every element of every floating-point output in its own way."""
    total = None
    for tensor in tensors_in(output):
        if tensor.is_floating_point() and tensor.requires_grad:
            weights = rng.standard_normal(tuple(tensor.shape)).astype(tensor.detach().numpy().dtype)
            part = (tensor * m.from_numpy(np.asarray(weights))).sum()
            total = part if total is None else total + part
    return total


def _one_step(m: Any, module: Any, arrays: Sequence[Any], call: dict[str, Any], seed: int) -> tuple[Any, ...]:
    """Forward, backward, one step downhill: the output, the gradients of the inputs and of the parameters."""
    args, kwargs = _tensors(m, tuple(arrays), True), _tensors(m, call, True)
    for parameter in module.parameters():
        parameter.grad = None
    output = module(*args, **kwargs)
    loss = _weighted_sum(output, np.random.default_rng(seed), m)
    if loss is not None:
        loss.backward()
    inputs = [t.grad if t.requires_grad else None for t in tensors_in([*args, *kwargs.values()])]
    grads = {}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        grads[name] = None if grad is None else grad.to_dense() if m is torch and grad.is_sparse else grad.clone()
        if grad is not None:
            parameter.data.sub_(grads[name], alpha=LEARNING_RATE)
    return output, inputs, grads


def check(
    torch_module: Any,
    wf_module: Any,
    *arrays: Any,
    rtol: float | None = None,
    atol: float | None = None,
    train: bool = True,
    **call_kwargs: Any,
) -> None:
    """Compare everything about two modules, called as `module(*arrays, **call_kwargs)`.

    The parameters of PyTorch's get scrambled values, its state is loaded into Wayfare's, then both go two training
    steps and one forward in eval mode: `repr`, keys and values of the state, outputs, gradients of inputs and
    parameters and the buffers must agree. Arrays of floats require gradients. `train=False` leaves the training mode
    out (for dropout): the steps are then done in eval mode.
    """
    tolerance = None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)
    assert repr(wf_module) == repr(torch_module)
    _scramble(torch_module)
    result = wf_module.load_state_dict(_state(torch_module))
    assert not result.missing_keys and not result.unexpected_keys
    _check_state(torch_module, wf_module, None, "loaded")
    ours, theirs = list(wf_module.named_parameters()), list(torch_module.named_parameters())
    assert [(n, p.requires_grad) for n, p in ours] == [(n, p.requires_grad) for n, p in theirs]
    assert [n for n, _ in wf_module.named_buffers()] == [n for n, _ in torch_module.named_buffers()]
    for module in (torch_module, wf_module):
        module.train(train)
    for step in range(STEPS):
        actual = _one_step(wf, wf_module, arrays, call_kwargs, step)
        expected = _one_step(torch, torch_module, arrays, call_kwargs, step)
        when = f"step {step}"
        _agree(actual[0], expected[0], tolerance, f"{when}: output")
        _agree(actual[1], expected[1], tolerance, f"{when}: gradient of input")
        assert actual[2].keys() == expected[2].keys()
        for name, grad in expected[2].items():
            _agree(actual[2][name], grad, tolerance, f"{when}: gradient of {name}")
        _check_state(torch_module, wf_module, tolerance, when)
    torch_module.eval()
    wf_module.eval()
    with wf.no_grad(), torch.no_grad():
        outputs = [
            module(*_tensors(m, arrays, False), **_tensors(m, call_kwargs, False))
            for m, module in ((wf, wf_module), (torch, torch_module))
        ]
    _agree(*outputs, tolerance, "eval: output")


def _of_dtype(value: Any, dtype: str) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(dtype) if value.dtype.kind == "f" else value
    if isinstance(value, (tuple, list)):
        return type(value)(_of_dtype(item, dtype) for item in value)
    return value


def check_module(
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    inputs: Sequence[Any],
    *,
    dtypes: Sequence[str] = ("float32", "float64"),
    rtol: float | None = None,
    atol: float | None = None,
    train: bool = True,
    **call_kwargs: Any,
) -> None:
    """`check` for the class of one name in both libraries, in each of the dtypes.

    A tolerance that is given is for float32; float64 keeps its own.
    """
    assert_same_signature(name)
    for dtype in dtypes:
        theirs = getattr(torch.nn, name)(*args, **kwargs).to(getattr(torch, dtype))
        ours = getattr(wf.nn, name)(*args, **kwargs).to(getattr(wf, dtype))
        arrays = [_of_dtype(value, dtype) for value in inputs]
        call = {key: _of_dtype(value, dtype) for key, value in call_kwargs.items()}
        usual = default_tolerance(dtype)
        wanted = dtype == "float32"
        check(
            theirs, ours, *arrays,
            rtol=rtol if wanted and rtol is not None else usual.relative,
            atol=atol if wanted and atol is not None else usual.absolute,
            train=train, **call,
        )  # fmt: skip


def assert_same_signature(name: str) -> None:
    """The constructor takes the same names in the same order with the same defaults."""

    def parameters(cls: Any) -> list[tuple[str, Any]]:
        return [
            (p.name, p.default)
            for p in inspect.signature(cls.__init__).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]

    assert parameters(getattr(wf.nn, name)) == parameters(getattr(torch.nn, name))


def check_initialisation(name: str, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> None:
    """Fresh parameters and buffers: the same constants, or numbers from the same distribution. Give large sizes."""
    torch.manual_seed(1)
    theirs = getattr(torch.nn, name)(*args, **(kwargs or {}))
    with wf.fork_rng():
        wf.manual_seed(1)
        ours = getattr(wf.nn, name)(*args, **(kwargs or {}))
    expected, actual = _state(theirs), _state(ours)
    assert list(expected) == list(actual)
    for key, values in expected.items():
        assert actual[key].shape == values.shape and actual[key].dtype == values.dtype, key
        if values.size == 0 or (values == values.flat[0]).all():
            np.testing.assert_array_equal(actual[key], values, err_msg=key)
            continue
        assert values.size >= 300, f"{key} has only {values.size} elements, too few to tell distributions apart"
        found = ks_2samp(actual[key].ravel(), values.ravel())
        assert found.pvalue > 1e-4, f"{key}: distributions differ (p = {found.pvalue:.2g})"


def both_refuse(theirs: Callable[[], Any], ours: Callable[[], Any]) -> str:
    """Both calls must fail, Wayfare's with the class of PyTorch's error. Returns Wayfare's message."""
    try:
        theirs()
    except Exception as error:
        expected = error
    else:
        raise AssertionError("PyTorch takes this")
    try:
        ours()
    except Exception as error:
        assert isinstance(error, type(expected)), f"{type(error).__name__}({error}) instead of {expected!r}"
        return str(error)
    raise AssertionError(f"Wayfare takes this, PyTorch raises {expected!r}")
