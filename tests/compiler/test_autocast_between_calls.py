"""A compiled function is never stale when the switches of autocast change between its calls."""

import warnings

import pytest

import wayfare as wf

B, H = wf.bfloat16, wf.float16


@pytest.fixture(autouse=True)
def _switches_as_they_were():
    yield
    wf.set_autocast_dtype("cpu", B)
    wf.set_autocast_cache_enabled(True)


def _with_warnings_as_errors(calls):
    """A replay that differs from Python would be told; that Python is faster does not count."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*differ from Python.*")
        for call in calls:
            call()


@pytest.mark.parametrize("name", ["a block inside", "the dtype is asked for"])
def test_another_default_dtype(name):
    weight, x = wf.randn(4, 4), wf.randn(4, 4)

    @wf.compile
    def outputs(x):
        if name == "the dtype is asked for":
            return x.to(wf.get_autocast_dtype("cpu"))
        with wf.autocast("cpu"):
            return x @ weight

    def call(dtype):
        wf.set_autocast_dtype("cpu", dtype)
        assert outputs(x).dtype is dtype

    _with_warnings_as_errors(lambda d=d: call(d) for d in (B, B, B, H, B, H, H, B))


@pytest.mark.parametrize("block", [True, False])
def test_whether_casts_are_kept(block):
    x = wf.ones(3)

    @wf.compile
    def outputs(x):
        return x * 2 if wf.is_autocast_cache_enabled() else x * 3

    def call(kept):
        if block:
            with wf.autocast("cpu", cache_enabled=kept):
                out = outputs(x)
        else:
            wf.set_autocast_cache_enabled(kept)
            out = outputs(x)
        assert out.tolist() == [2.0 if kept else 3.0] * 3

    _with_warnings_as_errors(lambda k=k: call(k) for k in (True, True, True, False, True, False, False, True))


def test_a_weight_that_was_cast_before_the_call():
    """The gradient of Python's run goes through a cast made outside; the self-check must see it nevertheless."""
    x = wf.randn(4, 8)
    plain = wf.randn(8, 8, requires_grad=True)
    other = plain.detach().clone().requires_grad_()
    loss = lambda x, w: (x @ w).float().square().sum()
    compiled = wf.compile(loss)

    def step():
        for weight, f in ((plain, loss), (other, compiled)):
            weight.grad = None
            with wf.autocast("cpu"):
                total = (x @ weight).float().sum() + f(x, weight)
            total.backward()
        wf.testing.assert_close(plain.grad, other.grad, rtol=0.03, atol=0.1)

    _with_warnings_as_errors([step] * 8)
