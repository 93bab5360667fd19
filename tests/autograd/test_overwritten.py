"""Writes that overwrite each other: forward mode is the derivative of "the last wins", reverse mode is PyTorch's."""

import numpy as np
import pytest

import wayfare as wf

I = [0, 0, 2, 0, 2]


def _assigned(lib, s):
    y = lib.zeros(4) * s.sum()
    y[lib.tensor(I)] = s
    return y


def _put_into(name):
    def call(lib, s):
        out = lib.zeros(4) * s.sum()
        getattr(out, name)(*([0] if name != "index_put_" else []), *_index(lib, name), s)
        return out

    return call


def _index(lib, name):
    return [(lib.tensor(I),)] if name.startswith("index_put") else [lib.tensor(I)]


WRITES = {
    "scatter": lambda lib, s: lib.zeros(4).scatter(0, lib.tensor(I), s),
    "scatter of rows": lambda lib, s: lib.zeros(3, 2).scatter(0, lib.tensor([[0, 1], [0, 1]]), s[:4].reshape(2, 2)),
    "index_put": lambda lib, s: lib.zeros(4).index_put((lib.tensor(I),), s),
    "index_put of pairs": lambda lib, s: lib.zeros(3, 2).index_put((lib.tensor(I), lib.tensor([1, 1, 0, 0, 0])), s),
    "index_put of one for all": lambda lib, s: lib.zeros(4).index_put((lib.tensor(I),), s[0]),
    "index_copy": lambda lib, s: lib.zeros(4).index_copy(0, lib.tensor(I), s),
    "index_copy of rows": lambda lib, s: lib.zeros(2, 2).index_copy(0, lib.tensor([1, 1]), s[:4].reshape(2, 2)),
    "put": lambda lib, s: lib.zeros(2, 2).put(lib.tensor(I), s),
    "y[i] = s": _assigned,
    "scatter_": _put_into("scatter_"),
    "index_copy_": _put_into("index_copy_"),
    "index_put_": _put_into("index_put_"),
    "over itself": lambda lib, s: s.scatter(0, lib.tensor([1, 1]), s[:2] * 3),
    "added": lambda lib, s: lib.zeros(4).index_put((lib.tensor(I),), s, accumulate=True),
}
S = [1.0, 2.0, 3.0, 4.0, 5.0]
T = [10.0, 20.0, 30.0, 40.0, 50.0]


@pytest.mark.parametrize("name", WRITES)
def test_forward_mode_is_the_derivative(name):
    def write(s):
        return WRITES[name](wf, s)

    s, t = wf.tensor(S, dtype=wf.float64), wf.tensor(T, dtype=wf.float64)
    with _doubles():
        # Every write here is linear.
        wanted = (write(s + t) - write(s)).numpy()
        value, tangent = wf.func.jvp(write, (s,), (t,))
        np.testing.assert_allclose(value.numpy(), write(s).numpy())
        np.testing.assert_allclose(tangent.numpy(), wanted)
        np.testing.assert_allclose(wf.func.linearize(write, s)[1](t).numpy(), wanted)
        matrix = wf.func.jacfwd(write)(s)
        np.testing.assert_allclose((matrix @ t).numpy(), wanted)
        # A product, so that there is a second derivative.
        curved = wf.func.jacfwd(wf.func.jacfwd(lambda u: (write(u) * write(u)).sum()))(s)
        np.testing.assert_allclose(curved.numpy(), 2 * (matrix.reshape(-1, 5).T @ matrix.reshape(-1, 5)).numpy())
        many = wf.vmap(lambda d: wf.func.jvp(write, (s,), (d,))[1])(wf.stack([t, 2 * t]))
        np.testing.assert_allclose(many.numpy(), np.stack([wanted, 2 * wanted]))


class _doubles:
    def __enter__(self):
        wf.set_default_dtype(wf.float64)

    def __exit__(self, *error):
        wf.set_default_dtype(wf.float32)


@pytest.mark.parametrize("name", WRITES)
def test_forward_and_reverse_as_in_pytorch(name):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (wf, torch):
        s = lib.tensor(S, requires_grad=True)
        out = WRITES[name](lib, s)
        weights = lib.arange(float(np.prod(out.shape))).reshape(out.shape) + 1
        (out * weights).sum().backward()
        tangent = lib.func.jvp(lambda u, lib=lib: WRITES[name](lib, u), (lib.tensor(S),), (lib.tensor(T),))[1]
        found.append((s.grad.numpy(), tangent.numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    if name != "index_put of one for all":  # one value for all: nothing to overwrite
        np.testing.assert_array_equal(found[0][1], found[1][1])


def test_each_example_has_its_own_index():
    indices = wf.tensor([[0, 0], [1, 0], [1, 1]])
    s, t = wf.tensor([1.0, 2.0]), wf.tensor([10.0, 20.0])

    def one(index):
        return wf.func.jvp(lambda u: wf.zeros(2).scatter(0, index, u), (s,), (t,))[1]

    assert wf.vmap(one)(indices).tolist() == [[20, 0], [20, 10], [0, 20]]


def test_reverse_mode_in_between_is_not_changed():
    i, s = wf.tensor([0, 0]), wf.tensor([1.0, 2.0])

    def loss(u):
        return (wf.zeros(2).scatter(0, i, u) ** 2).sum()

    before = wf.func.grad(loss)(s).tolist()
    wf.func.jvp(loss, (s,), (s,))
    assert wf.func.grad(loss)(s).tolist() == before == [4, 4]
    compiled = wf.compile(loss)
    for _ in range(4):
        assert wf.func.jvp(compiled, (s,), (wf.tensor([1.0, 10.0]),))[1].item() == 40
        u = s.clone().requires_grad_()
        compiled(u).backward()
        assert u.grad.tolist() == [4, 4]


def test_forward_mode_of_an_embedding_knows_no_padding():
    torch = pytest.importorskip("torch")
    found = []
    for lib in (wf, torch):
        for options in ({"padding_idx": 0}, {"scale_grad_by_freq": True}):
            def look(w, lib=lib, options=options):
                return lib.nn.functional.embedding(lib.tensor([0, 1, 1]), w, **options)

            w, t = lib.ones(3, 2), lib.arange(6.0).reshape(3, 2)
            found.append(lib.func.jvp(look, (w,), (t,))[1].tolist())
    assert found[:2] == found[2:]
