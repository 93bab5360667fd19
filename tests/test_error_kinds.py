"""Where PyTorch refuses something, Wayfare does too, with the same built-in exception; what it takes, Wayfare takes.

Each line runs in both. Wayfare's error may be more than PyTorch's (a TypeError as well), never something else.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import wayfare

torch = pytest.importorskip("torch")

LINES = {
    "vmap": """
        wf.vmap(lambda v: v@v)(wf.arange(3.))
        wf.vmap(lambda a,b: a*b)(wf.arange(3.), 2.5)
        wf.vmap(lambda a,b: a*b, in_dims=(0,None))(wf.arange(3.), 2.5)
        wf.vmap(lambda a: 3)(wf.arange(3.))
        wf.vmap(lambda a: (a, 3))(wf.arange(3.))
        wf.vmap(lambda a: None)(wf.arange(3.))
        wf.vmap(lambda a,b: a*b)(wf.arange(3.), wf.arange(4.))
        wf.vmap(lambda a: a, in_dims=1)(wf.arange(3.))
        wf.vmap(lambda a: a, in_dims=(0,0))(wf.arange(3.))
        wf.vmap(lambda a: a, in_dims='x')(wf.arange(3.))
        wf.vmap(lambda a: a, in_dims=1.5)(wf.arange(3.))
        wf.vmap(lambda a: a, in_dims=None)(wf.arange(3.))
        wf.vmap(lambda a: a, in_dims=[0])(wf.arange(3.))
        wf.vmap(lambda a: a['x'], in_dims=({'y':0},))({'x':wf.arange(3.)})
        wf.vmap(lambda a: a[0], in_dims=((0,0),))((wf.arange(3.),))
        wf.vmap(lambda a: a, in_dims=-2)(wf.arange(3.))
        wf.vmap(lambda a: a, randomness='bad')(wf.arange(3.))
        wf.vmap(lambda a: a, out_dims=3)(wf.arange(3.))
        wf.vmap(lambda a: a, out_dims=(0,0))(wf.arange(3.))
        wf.vmap(lambda a: a, out_dims='x')(wf.arange(3.))
        wf.vmap(lambda a: (a,a), out_dims=(0,))(wf.arange(3.))
        wf.vmap(lambda a: a, chunk_size=0)(wf.arange(3.))
        wf.vmap(lambda a: a)()
        wf.vmap(lambda a: a)(wf.tensor(1.))
        wf.vmap(lambda a: a@wf.ones(7))(wf.ones(2,3))
        wf.vmap(lambda a: wf.matmul(a, a))(wf.ones(2,3,4))
        wf.vmap(lambda a: a+wf.ones(7))(wf.ones(2,3))
        wf.vmap(lambda a: a.sum(1))(wf.ones(2,3))
        wf.vmap(lambda a: a.reshape(7))(wf.ones(2,3))
        wf.vmap(lambda a: wf.cat([a,a],1))(wf.ones(2,3))
        wf.vmap(lambda a: wf.nn.functional.linear(a, wf.ones(4,5)))(wf.ones(2,3))
        wf.vmap(lambda a: wf.mm(a, a))(wf.ones(2,3,4))
        wf.vmap(lambda a: wf.dot(a, a))(wf.ones(2,3,4))
        wf.vmap(lambda a: a.transpose(0,1))(wf.ones(2,3))
        wf.vmap(lambda a: a[5])(wf.ones(2,3))
        wf.vmap(lambda a: wf.bmm(a,a))(wf.ones(2,3,4))
        wf.vmap(lambda a: wf.outer(a,a))(wf.ones(2,3,4))
    """,
    "functional_call": """
        wf.func.functional_call(m, ({'weight':a},{'weight':a}), x)
        wf.func.functional_call(m, {'nope':a}, x)
        wf.func.functional_call(m, {'nope':a}, x, strict=True)
        wf.func.functional_call(m, {'weight':a}, x, strict=True)
        wf.func.functional_call(m, 3, x)
        wf.func.functional_call(m, [{'weight':a},3], x)
    """,
    "derivatives": """
        wf.func.grad(lambda x: x.sum(), argnums=[0])(x)
        wf.func.grad(lambda x: x.sum(), argnums=3)(x)
        wf.func.grad(lambda x: x.sum(), argnums=-2)(x)
        wf.func.grad(lambda x: x.sum(), argnums=(0,0))(x)
        wf.func.grad(lambda x: x.sum())(wf.arange(3))
        wf.func.grad(lambda x: x*2)(3.0)
        wf.func.grad(lambda x: x)(None)
        wf.func.grad(lambda x: x.sum().reshape(1))(x)
        wf.func.grad(lambda x: x)(x)
        wf.func.grad(lambda x: 3.0)(x)
        wf.func.grad(lambda x: x.sum(), argnums='a')(x)
        wf.func.grad(lambda x: x.sum(), argnums=())(x)
        wf.func.grad(lambda x: x.sum(), has_aux=True)(x)
        wf.func.jacrev(lambda x: x, argnums=3)(x)
        wf.func.jacrev(lambda x: x, argnums=[0])(x)
        wf.func.jacfwd(lambda x: x, argnums=3)(x)
        wf.func.jacrev(lambda x: x)(3.0)
        wf.func.jacrev(lambda x: 3.0)(x)
        wf.func.hessian(lambda x: x.sum(), argnums=2)(x)
        wf.func.vjp(lambda x: x, 3.0)
        wf.func.vjp(lambda x: 3, x)
        wf.func.vjp(lambda x: x, wf.arange(3))
        wf.func.jacrev(lambda x: x)(wf.arange(3))
        wf.func.jacfwd(lambda x: x)(wf.arange(3))
        wf.func.grad(lambda x: x.long().sum())(x)
        wf.func.vjp(lambda x:(x,x), x)[1](x)
        wf.func.vjp(lambda x:{'a':x}, x)[1](x)
        wf.func.vjp(lambda x:x, x)[1](wf.ones(5))
        wf.func.vjp(lambda x:(x,x), x)[1]([x,x])
        wf.func.vjp(lambda x:x, x)[1](3.)
        wf.func.vjp(lambda x:(x,(x,)), x)[1]((x,x))
        wf.func.jvp(lambda x:x, x, x)
        wf.func.jvp(lambda x:x, (x,), (x,x))
        wf.func.jvp(lambda x:x, (x,), x)
        wf.func.jvp(lambda x:x, [x], [x])
        wf.func.jvp(lambda x:x, (x,), (3.,))
        wf.func.jvp(lambda x:x, (x,), (wf.ones(5),))
        wf.func.jvp(lambda x:x, (3.,), (x,))
        wf.func.jvp(lambda x:3, (x,), (x,))
        wf.func.jvp(lambda x:x, (), ())
        wf.func.jvp(lambda x:x[0], ((x,),), (x,))
        wf.func.linearize(lambda x:x, x)[1](x,x)
    """,
    "joining": """
        wf.stack([])
        wf.cat([])
        wf.hstack([])
        wf.vstack([])
    """,
    "empty": """
        wf.tensor([]).argmax()
        wf.tensor([]).argmin()
        wf.zeros(0,3).argmax(0)
        wf.tensor([]).max()
        wf.zeros(0,3).max(0)
        wf.tensor([]).median()
        wf.tensor([]).min(0)
        wf.zeros(0,3).amax(0)
        wf.zeros(0).amax()
        wf.zeros(0,3).mode(0)
        wf.zeros(0,3).kthvalue(1,0)
        wf.zeros(0).median(0)
        wf.zeros(0).cummax(0)
        wf.zeros(0).topk(1)
        wf.zeros(0).logsumexp(0)
    """,
    "no_dimensions": """
        wf.tensor(1.).unbind(0)
        wf.tensor(1.).unbind(1)
        wf.tensor(1.).split(1)
        wf.tensor(1.).chunk(1)
        wf.tensor(1.).select(0,0)
        wf.tensor(1.)[0]
        wf.tensor(1.).narrow(0,0,1)
        wf.tensor(1.).index_select(0, wf.tensor([0]))
        wf.tensor(1.).squeeze(0)
        wf.tensor(1.).squeeze(1)
        wf.tensor(1.).unfold(0,1,1)
        wf.tensor(1.).diff()
        wf.tensor(1.).tensor_split(1)
        wf.tensor(1.).size(0)
        wf.tensor(1.).movedim(1,0)
    """,
    "creation": """
        wf.tensor([[1,2],[3]])
        wf.tensor(None)
        wf.tensor(2**63)
        wf.tensor([2**63])
        wf.tensor(2**64)
        wf.tensor(-2**64)
        wf.tensor('a')
        wf.tensor(['a'])
        wf.tensor([None])
        wf.tensor({})
        wf.tensor(object())
        wf.tensor(300, dtype=wf.uint8)
        wf.tensor([1.5], dtype='x')
        wf.tensor(1+2j, dtype=wf.float32)
        wf.tensor([wf.ones(2), 3])
        wf.tensor(float('inf'), dtype=wf.int64)
        wf.tensor(float('nan'), dtype=wf.int32)
        wf.full((2,), 2**63)
        wf.as_tensor(None)
        wf.as_tensor([[1],[2,3]])
        wf.tensor(b'a')
        wf.tensor({1,2})
        wf.tensor(np.array(['a']))
        wf.tensor(np.array([None]))
        wf.tensor(lambda: 1)
    """,
    "filling": """
        wf.arange(3).masked_fill_(wf.tensor([True,False,True]), float('inf'))
        wf.arange(3).masked_fill(wf.tensor([True,False,True]), float('inf'))
        wf.arange(3).fill_(float('inf'))
        wf.arange(3).index_fill_(0, wf.tensor([0]), float('inf'))
        wf.arange(3).clamp_(max=float('inf'))
        wf.arange(3).add_(float('inf'))
        wf.full((2,), float('inf'), dtype=wf.int64)
        wf.arange(3).index_put_((wf.tensor([0]),), wf.tensor(float('inf')))
        wf.arange(3).__setitem__(0, float('inf'))
        wf.arange(3).__setitem__(0, 2**70)
        wf.arange(3).fill_(float('nan'))
        wf.arange(3).scatter_(0, wf.tensor([0]), float('inf'))
        wf.nn.functional.pad(wf.arange(3),(1,1),value=float('inf'))
        wf.zeros(2,2,dtype=wf.int64).fill_diagonal_(float('inf'))
        wf.arange(3) + 2**70
        wf.arange(3) == 2**70
        wf.arange(3, dtype=wf.uint8).fill_(300)
    """,
    "custom": """
        NoBwd.apply(xg).sum().backward()
        StrBwd.apply(xg).sum().backward()
        ListBwd.apply(xg).sum().backward()
        FltBwd.apply(xg).sum().backward()
        NoFwd.apply(xg)
        StrBwd.apply(x=xg)
        StrBwd()
    """,
    "data": """
        datab()
        setattr(wf.ones(3), 'data', 3)
        setattr(wf.ones(3,requires_grad=True), 'data', wf.arange(3))
    """,
    "schedules": """
        wf.optim.lr_scheduler.StepLR(sgd(), 1, last_epoch=3)
        wf.optim.lr_scheduler.ExponentialLR(sgd(), .1, last_epoch=3)
        wf.optim.lr_scheduler.LambdaLR(sgd(), lambda e: e, last_epoch=3)
        wf.optim.lr_scheduler.CosineAnnealingLR(sgd(), 3, last_epoch=3)
        wf.optim.lr_scheduler.OneCycleLR(sgd(), .1, total_steps=10, last_epoch=3)
        wf.optim.lr_scheduler.CyclicLR(sgd(), .1, .2, last_epoch=3)
    """,
    "optimisers": """
        sgd().load_state_dict({})
        sgd().load_state_dict({'state':{}, 'param_groups':[]})
        sgd().load_state_dict({'state':{}, 'param_groups':[{'params':[0,1,2]}]})
        sgd().load_state_dict({'state':{}})
        wf.optim.SGD([{'lr':1.}], lr=.1)
        sgd().add_param_group({'lr':1.})
        sgd().add_param_group([1])
        wf.optim.SGD([{'params':[x], 'lr':1.}, {'lr':2}], lr=.1)
        wf.optim.SGD([], lr=.1)
        wf.optim.SGD([3], lr=.1)
        wf.optim.SGD(x, lr=.1)
        wf.optim.SGD([x], lr=-1)
        wf.optim.SGD([{'params':[xg]},{'params':[xg]}], lr=1)
        wf.optim.SGD({1:2}, lr=1)
        wf.optim.SGD([{'params':{xg}}], lr=1)
    """,
    "attention": """
        wf.nn.MultiheadAttention(5,2)
        wf.nn.MultiheadAttention(0,2)
        wf.nn.MultiheadAttention(4,0)
        wf.nn.MultiheadAttention(4,2)(wf.ones(2,3,5),wf.ones(2,3,5),wf.ones(2,3,5))
    """,
    "datasets": """
        wf.utils.data.ConcatDataset([])
        wf.utils.data.TensorDataset(wf.ones(2), wf.ones(3))
        wf.utils.data.ConcatDataset([[1],[2]])[5]
        wf.utils.data.random_split([1,2,3],[1,1])
        wf.utils.data.DataLoader([1,2,3], batch_size=0)
        wf.utils.data.RandomSampler([])
        wf.utils.data.DataLoader([], shuffle=True)
        list(wf.utils.data.DataLoader([]))
        wf.utils.data.RandomSampler([1], num_samples=0)
        wf.utils.data.StackDataset()
        wf.utils.data.RandomSampler([1], replacement=3)
        wf.utils.data.WeightedRandomSampler([1.], 0)
        wf.utils.data.BatchSampler([1], 0, False)
        wf.utils.data.StackDataset([1],[1,2])
    """,
    "bincount": """
        wf.bincount(wf.ones(3))
        wf.bincount(wf.tensor([-1]))
        wf.bincount(wf.tensor([[1]]))
        wf.bincount(wf.tensor([1]), minlength=-1)
        wf.bincount(wf.tensor([True]))
        wf.bincount(wf.tensor([1]), weights=wf.ones(2))
    """,
    "grad": """
        wf.autograd.grad(xg.sum(), [])
        wf.autograd.grad(xg.sum(), [xg], allow_unused=False, materialize_grads=True)
        wf.autograd.grad([], [xg])
        wf.autograd.grad(xg.sum(), ())
        wf.autograd.backward([])
        xg.sum().backward(inputs=[])
        wf.autograd.grad(3, [xg])
        wf.autograd.grad(xg.sum(), [3])
        wf.autograd.grad(xg.sum(), xg, grad_outputs=3)
    """,
    "requires_grad": """
        setattr(wf.ones(2),'requires_grad','a')
        setattr(wf.ones(2),'requires_grad',2)
        wf.ones(2).requires_grad_('a')
        setattr(wf.ones(2),'requires_grad',None)
        setattr(wf.ones(2),'requires_grad',np.bool_(True))
        wf.ones(2).requires_grad_(1)
        wf.ones(2, requires_grad='a')
        wf.tensor([1.], requires_grad='a')
        setattr(wf.ones(2),'requires_grad',wf.tensor(True))
        wf.nn.Parameter(wf.ones(2), requires_grad='a')
        wf.nn.Linear(2,2).requires_grad_('a')
    """,
    "contains": """
        'a' in wf.ones(2)
        None in wf.ones(2)
        [1] in wf.ones(2)
        True in wf.ones(2)
        np.float32(1) in wf.ones(2)
        np.ones(2) in wf.ones(2)
        (1+0j) in wf.ones(2)
    """,
    "truth": """
        bool(wf.tensor([]))
        bool(wf.ones(2))
        wf.tensor([]).item()
    """,
}


def _names(wf: Any) -> dict[str, Any]:
    """What the lines speak of, made by one of the two libraries."""

    class NoBwd(wf.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    class StrBwd(NoBwd):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return "a"

    class ListBwd(NoBwd):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return [1.0, 2.0]

    class FltBwd(NoBwd):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 1.0

    class NoFwd(wf.autograd.Function):
        pass

    def datab() -> None:
        x = wf.ones(3, requires_grad=True)
        y = x * 2
        y.data = wf.zeros(5)
        y.sum().backward()

    return {
        "wf": wf, "np": np, "x": wf.ones(3), "xg": wf.ones(3, requires_grad=True), "a": wf.ones(2, 3),
        "m": wf.nn.Linear(3, 2), "sgd": lambda: wf.optim.SGD([wf.nn.Parameter(wf.ones(3))], lr=0.1), "datab": datab,
        "NoBwd": NoBwd, "StrBwd": StrBwd, "ListBwd": ListBwd, "FltBwd": FltBwd, "NoFwd": NoFwd,
    }  # fmt: skip


def _error_of(line: str, names: dict[str, Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eval(line, dict(names))
        except Exception as error:
            return error
    return None


def _kind(error: Exception) -> type[BaseException]:
    return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")


@pytest.mark.parametrize("line", [line.strip() for lines in LINES.values() for line in lines.strip().splitlines()])
def test_the_kind_of_error_is_that_of_pytorch(line: str) -> None:
    theirs, ours = _error_of(line, _names(torch)), _error_of(line, _names(wayfare))
    if theirs is None:
        assert ours is None, f"PyTorch takes it: {ours!r}"
    else:
        assert isinstance(ours, _kind(theirs)), f"PyTorch: {theirs!r}"
        assert isinstance(ours, wayfare.errors.WayfareError) or type(ours) is _kind(theirs)


def test_errors_inside_vmap_show_the_shapes_of_one_example() -> None:
    with pytest.raises(RuntimeError, match=r"f32\[3\] @ f32\[7\]"):
        wayfare.vmap(lambda a: a @ wayfare.ones(7))(wayfare.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"f32\[\] @ f32\[\]"):
        wayfare.vmap(lambda a: a @ a)(wayfare.arange(3.0))
    with pytest.raises(RuntimeError, match=r"f32\[4\] @ f32\[5\]"):
        wayfare.vmap(wayfare.vmap(lambda a: a @ wayfare.ones(5)))(wayfare.ones(2, 3, 4))


def test_a_gradient_of_another_shape_names_the_node() -> None:
    with pytest.raises(RuntimeError, match="MulBackward0"):
        _names(wayfare)["datab"]()
    w = wayfare.ones(3, requires_grad=True)
    loss = w.exp().sum()
    w.data = wayfare.zeros(5)
    with pytest.raises(RuntimeError, match=r"\[3\] for a tensor of shape \[5\]"):
        loss.backward()


def test_truth_of_nothing_says_so() -> None:
    with pytest.raises(RuntimeError, match="no value"):
        bool(wayfare.tensor([]))
    with pytest.raises(RuntimeError, match="more than one value"):
        bool(wayfare.ones(2))


def test_gradients_by_name_go_to_the_outputs_of_that_name() -> None:
    x = wayfare.ones(2)
    _, pull = wayfare.func.vjp(lambda x: {"a": x * 2, "b": x * 3}, x)
    (g,) = pull({"b": wayfare.ones(2), "a": wayfare.zeros(2)})
    assert g.tolist() == [3.0, 3.0]


def test_arguments_of_a_function_by_name() -> None:
    class Scaled(wayfare.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, factor: float = 2.0) -> Any:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.factor, None

    x = wayfare.ones(2, requires_grad=True)
    Scaled.apply(factor=3.0, x=x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(TypeError, match="factors"):
        Scaled.apply(x, factors=3.0)


def test_functional_call_leaves_out_what_the_module_has_not() -> None:
    m = wayfare.nn.Linear(3, 2)
    x = wayfare.ones(3)
    given = {"weight": wayfare.zeros(2, 3), "elsewhere": wayfare.ones(1)}
    assert wayfare.func.functional_call(m, given, x).tolist() == m.bias.tolist()


NUMBERS: dict[str, Any] = {
    "f16": np.float16(1), "f32": np.float32(1), "f64": np.float64(1), "i64": np.int64(1), "i8": np.int8(1),
    "u8": np.uint8(1), "int": 2, "float": 2.5, "bool": True,
}  # fmt: skip


@pytest.mark.parametrize("second", NUMBERS)
@pytest.mark.parametrize("first", NUMBERS)
def test_the_dtype_of_a_list_of_numbers(first: str, second: str) -> None:
    for data in ([NUMBERS[first], NUMBERS[second]], [[NUMBERS[first]], [NUMBERS[second]]], (NUMBERS[first],)):
        assert str(wayfare.tensor(data).dtype).split(".")[-1] == str(torch.tensor(data).dtype).split(".")[-1], data
