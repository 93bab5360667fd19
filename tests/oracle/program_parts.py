"""What random programs are made of: the functions their statements may call, and the statements themselves."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

# -- functions: the module under test comes first, and is filled in before a program sees them -----------------------


def new(m: Any, seed: int, shape: tuple[int, ...], requires_grad: bool = False) -> Any:
    """A leaf with numbers that the seed decides."""
    values = np.random.default_rng(seed).uniform(-1.5, 1.5, shape)
    return m.from_numpy(values).requires_grad_(requires_grad)


def gradients(m: Any, out: Any, inputs: list[Any], **options: Any) -> Any:
    """The gradients of a weighted sum of `out` with respect to the inputs."""
    loss = (out * new(m, 99, tuple(out.shape))).sum()
    return m.autograd.grad(loss, inputs, allow_unused=True, **options)


def derivative(m: Any, out: Any, x: Any) -> Any:
    """The gradient of a weighted sum with respect to one tensor, which can be differentiated again; else zeros."""
    found = gradients(m, out, [x], create_graph=True)[0]
    return m.zeros(x.shape, dtype=m.float64) if found is None else found


def inner(v: Any) -> Any:
    """A function of a vector, of the kind people write: copies, writes in place, views."""
    out = v.clone()
    out[0] = out[-1] * 2
    out[1:].mul_(v[:-1])
    return (out * v).sum()


def changing(v: Any) -> Any:
    """Writes in place of one example, for vmap."""
    out = v.clone()
    out.mul_(v).add_(0.5)
    if out.dim():
        out[..., :1] = v[..., -1:] * 2
        out[..., -1].sin_()
    return out * v


def rewriting(v: Any) -> Any:
    """Writes in place within a checkpointed stretch."""
    out = v.sin()
    out.mul_(v)
    out.exp_()
    return out * v


@functools.cache
def functions(m: Any) -> dict[str, Any]:
    """Custom Functions for one module."""

    class Cube(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    class Doubled(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.mul_(2)
            return x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    class SumAndProduct(m.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            product = x * y
            ctx.save_for_backward(x, y)
            return x + y, product

        @staticmethod
        def backward(ctx, by_sum, by_product):
            x, y = ctx.saved_tensors
            of_x, of_y = by_sum + by_product * y, by_sum + by_product * x
            return of_x.sum_to_size(x.shape), of_y.sum_to_size(y.shape)

    return {"Cube": Cube, "Doubled": Doubled, "SumAndProduct": SumAndProduct}


# -- statements ------------------------------------------------------------------------------------------------------

# Methods that make a tensor of one; `t` is the tensor.
UNARY = (
    "sin()", "tanh()", "sigmoid()", "exp()", "relu()", "abs()", "square()", "neg()", "clamp(-0.7, 0.9)", "pow(3)",
    "mul(0.5)", "cumsum(0)", "softmax(-1)", "clone()", "logsumexp(0)", "sum(0)", "sum(-1, keepdim=True)", "mean()",
    "amax(0)", "prod(-1)", "var(0)", "sum()", "max(-1).values", "norm()", "std()", "tril()", "flip(0)",
    "contiguous()", "cumprod(0)", "sort(-1).values", "roll(1, 0)", "log_softmax(0)", "min()", "sqrt()", "argmax()",
    "log()", "expm1()", "reciprocal()", "repeat(2, *t.shape)",
)  # fmt: skip

# Expressions that make a tensor of two.
BINARY = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.square() + 1)", "m.maximum({a}, {b})",
    "m.where({a} > {b}, {a}, {b})", "m.sub({a}, {b}, alpha=0.5)", "m.where({a} > 0, {b}, 0.5)",
    "m.addcmul({a}, {a}, {b}, value=0.7)", "2.0 - {a} * {b}", "m.atan2({a}, {b} + 3)",
    "checkpoint(lambda a, b: (a * b).sin() * a, {a}.clone(), {b}.clone())",
)  # fmt: skip

# Methods that write a tensor in place, with another or alone.
WRITES = (
    "add_({b})", "mul_({b})", "sub_({b}, alpha=0.3)", "add_({b}, alpha=-2)", "div_({b}.square() + 1)", "copy_({b})",
    "addcmul_({b}, {b}, value=0.5)", "masked_fill_({b} > 0, 0.3)",
)  # fmt: skip

WRITES_ALONE = (
    "exp_()", "sigmoid_()", "tanh_()", "sin_()", "neg_()", "relu_()", "abs_()", "clamp_(-0.5, 1)", "fill_(0.4)",
    "zero_()", "mul_(0.5)", "add_(1)", "pow_(2)", "square_()", "cumsum_(0)", "triu_()",
    "masked_fill_({a} > 0, 0.2)", "mul_({a})", "add_({a})", "sqrt_()", "index_fill_(0, m.tensor([0]), 0.5)",
    "reciprocal_()", "clamp_min_(0)",
)  # fmt: skip

# Methods by which a tensor itself takes another shape.
RESHAPES = (
    "t_()", "unsqueeze_(0)", "squeeze_()", "transpose_(0, -1)", "unsqueeze_(-1)", "swapaxes_(0, -1)",
)  # fmt: skip

# Whole statements: {n} and {o} are new names, {a} and {b} tensors that broadcast with each other.
MORE = (
    "{n} = ({a}.float() * 2).double()",
    "{n} = {a} * {b}.float()",
    "{n} = Cube.apply({a})",
    "{n} = Cube.apply({a} + {b}) * {a}",
    "{n} = Doubled.apply({a}.clone())",
    "Doubled.apply({a})",
    "{n}, {o} = SumAndProduct.apply({a}, {b})",
    "{n} = SumAndProduct.apply({a}, {b})[0]",
    "if {a}.grad_fn is not None:\n"
    "    {a}.grad_fn.register_prehook(lambda g: tuple(x if x is None else x * 2 for x in g))",
    "if {a}.grad_fn is not None:\n"
    "    {a}.grad_fn.register_hook(lambda gi, go: tuple(x if x is None else x * 2 for x in gi))",
    "if {a}.is_leaf and {a}.requires_grad:\n"
    "    {a}.register_post_accumulate_grad_hook(lambda p: (p.grad.mul_(2), None)[1])",
    "if {a}.is_leaf and {a}.requires_grad:\n"
    "    {a}.register_post_accumulate_grad_hook(lambda p: (p.mul_(1.5), None)[1])",
    "if {a}.requires_grad and {b}.requires_grad:\n"
    "    m.autograd.backward([{a}.sum(), {b}.mean()], inputs=[{b}], retain_graph=True)",
    "{n} = m.func.grad(lambda v: (v.sin() * {b}).sum())({a}.clone())",
    "{n} = m.func.grad(inner)({a}.clone().reshape(-1))",
    "{n} = m.func.grad(lambda v: m.func.grad(inner)(v).square().sum())({a}.detach().reshape(-1))",
    "{n}, {o} = (v.detach() for v in m.func.jvp(lambda v: v.tanh() * {b}.clone(), "
    "({a}.detach().clone(),), ({a}.detach().cos(),)))",
    "{n} = m.func.vjp(inner, {a}.clone().reshape(-1))[1]({a}.detach().sum())[0]",
    "{n} = m.func.vmap(lambda v: (v * 2).tanh().sum() + v.reshape(-1)[-1])({a})",
    "{n} = m.func.vmap(changing)({a}.clone())",
    "{n} = m.func.vmap(lambda v: changing(v) * 2, in_dims=-1, out_dims=-1)({a}.clone())",
    "{n} = m.func.vmap(m.func.grad(lambda v: changing(v).sum()))({a}.clone())",
    "{n} = m.func.jacrev(lambda v: v.sin() * v.sum())({a}.detach().reshape(-1)[:3])",
    "{n} = m.func.jacfwd(lambda v: v.cumsum(0) * v)({a}.detach().clone().reshape(-1)[:3])",
    "with m.no_grad():\n    {n} = {a} * {b}",
    "with m.no_grad():\n    with m.enable_grad():\n        {n} = {a} * {b}",
    "with m.no_grad():\n    {n} = m.func.grad(lambda v: (v * v * v).sum())({a})",
    "with m.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):\n"
    "    {n} = {a}.exp() * {b}\n    {n}.mul_({a})",
    "{n} = checkpoint(rewriting, {a}.clone())",
    "{n} = checkpoint(lambda v: (v * {b}.detach().clone()).tanh().sin(), {a}.clone())",
    "{n} = m.einsum('...i,...i->...', {a}.clone(), {a}.clone())",
    "{n} = m.nn.functional.layer_norm({a}, {a}.shape[-1:]).mul_(2).add_(0.3)",
    "{n} = m.nn.functional.cross_entropy({a}.reshape(-1, {a}.shape[-1]), m.zeros({a}.numel() "
    "// {a}.shape[-1], dtype=m.int64)) * 1",
    "{n} = m.nn.functional.linear({a}, {a}.reshape(-1, {a}.shape[-1])[:2])",
    "{n}, _ = {a}[None].cummax(0)",
    "{n} = {a}.repeat_interleave(2, 0)",
    "if {a}.is_leaf and {a}.grad is not None:\n    {n} = {a}.grad.detach()\nelse:\n    {n} = {a}.detach()",
    "if {a}.is_leaf and {a}.grad is not None:\n    {n} = {a}.grad * 2 + {a}\nelse:\n    {n} = {a} * 2",
    "{n} = m.stack({a}.unbind(0)[::-1])",
    "{n} = m.broadcast_tensors({a}, {b})[0] * 2",
    "{n} = {a}.clone()\n{n}.diagonal(0, 0, -1).mul_(2)\n{n}.select(-1, 0).copy_({a}.select(-1, -1))",
    "{n} = {a}.clone()\nfor row in {n}:\n    {n}.mul_(0.9)",
    "{n} = {a}.clone().t_().mul_(2)",
    "{n} = {a}.clone()\n{o} = {n}[0]\n{n}.transpose_(0, -1)\n{n}.mul_({n}.detach() + 1)",
)
