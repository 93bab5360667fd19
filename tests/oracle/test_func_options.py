"""The options of function transforms side by side: aux, argnums, dims, structures, chunks; new tensors inside vmap."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree


def v(m):
    return m.tensor([0.3, 0.7, 1.1], dtype=m.float64)


def t(m):
    return m.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0]], dtype=m.float64)


def both(x):
    return x.sin(), x * 2


def filled(make):
    def one(x):
        out = make(x)
        out.copy_(x)
        out[0] = x.sum()
        return out.add_(x)

    return lambda m: m.func.vmap(one)(t(m))


def twice_filled(m):
    return m.func.vmap(m.func.vmap(lambda a, b: m.zeros_like(a).add_(b) * a, (0, None)), (None, 0))(v(m), v(m))


def changed_argument(m):
    x = v(m)
    return m.func.grad(lambda x: x.mul_(2).sin().sum())(x), x


def cube(m, with_rule=True):
    class Cube(m.autograd.Function):
        @staticmethod
        def forward(x, w):
            return x**3 * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * 3 * x**2 * w, g * x**3

    def rule(info, in_dims, x, w):
        assert info.batch_size == 2 and in_dims == (0, None)
        return Cube.apply(x, w).movedim(0, -1), -1

    if with_rule:
        Cube.vmap = staticmethod(rule)
    return Cube.apply


def through_its_rule(m):
    x, w = t(m).requires_grad_(), v(m).requires_grad_()
    y = m.func.vmap(cube(m), in_dims=(0, None))(x, w)
    y.sin().sum().backward()
    return y, x.grad, w.grad


CASES = {
    "a custom Function with a vmap": through_its_rule,
    "a custom Function without a vmap": lambda m: m.func.vmap(cube(m, with_rule=False), (0, None))(t(m), v(m)),
    "vjp with aux": lambda m: _of_vjp(m.func.vjp(both, v(m), has_aux=True), v(m)),
    "jvp with aux": lambda m: m.func.jvp(both, (v(m),), (v(m),), has_aux=True),
    "jacrev with aux": lambda m: m.func.jacrev(both, has_aux=True)(v(m)),
    "jacfwd with aux": lambda m: m.func.jacfwd(both, has_aux=True)(v(m)),
    "jacfwd of two with aux": lambda m: m.func.jacfwd(lambda x, y: (x.sin() * y, {"a": x}), (0, 1), True)(v(m), v(m)),
    "jacfwd of two results by two": lambda m: m.func.jacfwd(lambda x, y: (x * y, y.sum()), argnums=(0, 1))(v(m), v(m)),
    "jacrev of two results by two": lambda m: m.func.jacrev(lambda x, y: (x * y, y.sum()), argnums=(0, 1))(v(m), v(m)),
    "jacfwd by a dictionary": lambda m: m.func.jacfwd(lambda p: p["a"] * p["b"])({"a": v(m), "b": v(m)}),
    "jacfwd of a dictionary": lambda m: m.func.jacfwd(lambda x: {"o": x * 2, "q": (x.sum(), x)})(v(m)),
    "jacrev in chunks": lambda m: m.func.jacrev(lambda x: x.sin(), chunk_size=2)(v(m)),
    "jacrev row by row": lambda m: m.func.jacrev(lambda x: x.sin(), chunk_size=1)(v(m)),
    "jacfwd with randomness": lambda m: m.func.jacfwd(lambda x: x.sin(), randomness="same")(v(m)),
    "hessian by two": lambda m: m.func.hessian(lambda x, y: (x * y**2).sum(), argnums=(0, 1))(v(m), v(m)),
    "the last argument": lambda m: m.func.grad(lambda x, y: (x * y.sin()).sum(), argnums=-1)(v(m), v(m)),
    "one argument twice": lambda m: m.func.grad(lambda x, y: (x * y.sin()).sum(), argnums=(0, 0))(v(m), v(m)),
    "one argument twice, from behind": lambda m: m.func.jacrev(lambda x, y: x * y, argnums=(0, -2))(v(m), v(m)),
    "no such argument": lambda m: m.func.jacrev(lambda x: x, argnums=3)(v(m)),
    "jacrev of integers": lambda m: m.func.jacrev(lambda x: x.sort()[1])(v(m)),
    "jvp of integers": lambda m: m.func.jvp(lambda x: (x * 2, x.argmax()), (v(m),), (v(m),)),
    "vjp of no tensor": lambda m: m.func.vjp(lambda x: 3.0, v(m)),
    "jvp of no tensor": lambda m: m.func.jvp(lambda x: 3.0, (v(m),), (v(m),)),
    "strict jvp": lambda m: m.func.jvp(lambda x: m.ones(3), (v(m),), (v(m),), strict=True),
    "vmap with words": lambda m: m.func.vmap(lambda a, b=None: a * b)(t(m), b=t(m)),
    "vmap with words, in chunks": lambda m: m.func.vmap(lambda a, b=None: a * b, chunk_size=1)(t(m), b=t(m)),
    "a result without a batch": lambda m: m.func.vmap(lambda x: v(m), out_dims=None)(t(m)),
    "a batch where none may be": lambda m: m.func.vmap(lambda x: x, out_dims=None)(t(m)),
    "out_dims that are not there": lambda m: m.func.vmap(lambda x: x, out_dims=3)(t(m)),
    "out_dims from behind": lambda m: m.func.vmap(lambda x: m.outer(x, x), out_dims=-1)(t(m)),
    "zeros_like, written": lambda m: filled(m.zeros_like)(m),
    "ones_like, written": lambda m: filled(m.ones_like)(m),
    "empty_like, written": lambda m: filled(m.empty_like)(m),
    "full_like, written": lambda m: filled(lambda x: m.full_like(x, 2.0))(m),
    "new_zeros, written": lambda m: filled(lambda x: x.new_zeros(3))(m),
    "new_full, written": lambda m: filled(lambda x: x.new_full((3,), 2.0))(m),
    "zeros_like inside two vmaps": twice_filled,
    "an argument written in place": changed_argument,
}


def _of_vjp(made, seed):
    out, pull, aux = made
    return out, pull(seed), aux, aux.requires_grad, out.requires_grad


@pytest.mark.parametrize("name", CASES)
def test_options(name):
    agree(CASES[name], any_error=True)
