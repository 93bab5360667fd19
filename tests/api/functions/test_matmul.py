"""Contractions beyond what the records' own tests see: shapes, errors, operators, einsum's notation, layouts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.api.functions.matmul import _cheapest_splits
from wayfare.errors import ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.nn import functional as F

SIZES = st.integers(0, 3)


def array(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def tensor(*shape, dtype=np.float64, seed=0):
    return wf.from_numpy(array(*shape, dtype=dtype, seed=seed))


@st.composite
def factors(draw):
    """Two shapes that matmul can multiply, with broadcasting in front."""
    rows, inner, columns = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.lists(st.integers(0, 2), max_size=2))

    def lead():
        kept = batch[draw(st.integers(0, len(batch))) :]
        return tuple(1 if draw(st.booleans()) else size for size in kept)

    left = (inner,) if draw(st.booleans()) else (*lead(), rows, inner)
    right = (inner,) if draw(st.booleans()) else (*lead(), inner, columns)
    return left, right


class TestMatmul:
    @given(factors())
    def test_values_and_gradients_fit_every_pair_of_shapes(self, shapes):
        a, b = (tensor(*shape).requires_grad_() for shape in shapes)
        out = a @ b
        want = np.matmul(a.detach().numpy(), b.detach().numpy())
        assert tuple(out.shape) == want.shape
        np.testing.assert_allclose(out.detach().numpy(), want, atol=1e-12)
        seed = array(*want.shape, seed=7)
        out.backward(wf.from_numpy(np.array(seed)))
        # The sum of all products is linear in each side, so its gradient by a gives it back.
        total = float((want * seed).sum())
        for side in (a, b):
            assert side.grad.shape == side.shape
            assert float((side.grad.numpy() * side.detach().numpy()).sum()) == pytest.approx(total, abs=1e-9)

    def test_the_error_names_both_shapes_the_line_and_the_likely_fix(self):
        with pytest.raises(ShapeError) as caught:
            tensor(8, 3, dtype=np.float32) @ tensor(2, 3, dtype=np.float32)
        text = str(caught.value)
        assert text.startswith("matmul: inner sizes differ, f32[8,3] @ f32[2,3] (test_matmul.py:")
        assert text.endswith("Did you mean x @ w.T?")

    @pytest.mark.parametrize("left, right, hint", [
        ((2, 3), (2, 4), "x.T @ w"),
        ((5, 2, 3), (5, 2, 3), "x @ w.mT"),
        ((5, 4, 3), (5, 4, 2), "x.mT @ w"),
        ((2, 3), (4, 5), "must equal the last but one size of the right (4)"),
        ((3,), (4,), "must equal the only size of the right (4)"),
    ])  # fmt: skip
    def test_the_hint_fits_the_shapes(self, left, right, hint):
        with pytest.raises(ShapeError, match=r"inner sizes differ") as caught:
            wf.matmul(tensor(*left), tensor(*right))
        assert hint in str(caught.value)

    def test_batches_that_do_not_broadcast(self):
        with pytest.raises(ShapeError, match=r"matmul: shapes \[2\] and \[3\] do not broadcast"):
            tensor(2, 4, 4) @ tensor(3, 4, 4)

    def test_one_dtype_is_needed(self):
        with pytest.raises(DTypeError, match=r"f64\[2,2\] @ f32\[2,2\].*wf\.float32"):
            tensor(2, 2) @ tensor(2, 2, dtype=np.float32)

    def test_bools_and_numbers_are_refused(self):
        yes = wf.from_numpy(np.ones((2, 2), bool))
        with pytest.raises(DTypeError, match="bool tensors cannot be multiplied as matrices"):
            yes @ yes
        with pytest.raises(ShapeError, match=r"Use \* to scale"):
            tensor(2, 2) @ wf.tensor(2.0, dtype=wf.float64)
        with pytest.raises(ArgumentTypeError, match="matmul: expected tensors, not float"):
            wf.matmul(tensor(2, 2), 2.0)
        with pytest.raises(TypeError):
            tensor(2, 2) @ 2.0

    def test_numpy_arrays_on_either_side_give_a_tensor(self):
        a, b = array(2, 3), array(3, 4)
        left, right = wf.from_numpy(a) @ b, a @ wf.from_numpy(b)
        for out in (left, right):
            assert isinstance(out, wf.Tensor)
            np.testing.assert_allclose(out.numpy(), np.matmul(a, b))

    def test_integers_multiply_and_keep_their_dtype(self):
        a = wf.from_numpy(np.array([[1, 2], [3, 4]], np.int32))
        out = a @ a
        assert out.dtype is wf.int32
        assert out.tolist() == [[7, 10], [15, 22]]

    def test_half_precision_sums_in_single(self):
        # 2049 ones and a small number: summed in float16 the ones would stop counting at 2048.
        ones = wf.from_numpy(np.ones((1, 2052), np.float16))
        out = ones @ ones.T
        assert out.dtype is wf.float16
        assert out.item() == 2052

    def test_a_stack_times_one_matrix_is_one_product_also_for_empty_inner_sizes(self):
        assert (tensor(2, 3, 0) @ tensor(0, 4)).tolist() == np.zeros((2, 3, 4)).tolist()
        assert (tensor(0, 3, 2) @ tensor(2, 4)).shape == (0, 3, 4)


class TestNamedForms:
    @pytest.mark.parametrize("name, shapes", [
        ("mm", ((2, 3), (3, 4))),
        ("bmm", ((2, 3, 4), (2, 4, 2))),
        ("mv", ((2, 3), (3,))),
        ("dot", ((3,), (3,))),
        ("vdot", ((3,), (3,))),
    ])  # fmt: skip
    def test_they_are_matmul_of_fixed_ranks(self, name, shapes):
        a, b = (tensor(*s) for s in shapes)
        want = np.matmul(a.numpy(), b.numpy())
        np.testing.assert_allclose(getattr(wf, name)(a, b).numpy(), want)
        np.testing.assert_allclose(getattr(a, name)(b).numpy(), want)
        with pytest.raises(ShapeError, match=rf"{name}: needs .* f64\[1,1,1,1\]"):
            getattr(wf, name)(tensor(1, 1, 1, 1), b)

    def test_bmm_does_not_broadcast(self):
        with pytest.raises(ShapeError, match="bmm: the stacks have different lengths"):
            wf.bmm(tensor(1, 2, 2), tensor(3, 2, 2))

    def test_outer_inner_kron_tensordot_as_numpy_has_them(self):
        a, b = array(3), array(4)
        np.testing.assert_allclose(wf.outer(wf.from_numpy(a), wf.from_numpy(b)).numpy(), np.outer(a, b))
        x, y = array(2, 5, 3), array(4, 3)
        np.testing.assert_allclose(wf.inner(wf.from_numpy(x), wf.from_numpy(y)).numpy(), np.inner(x, y))
        u, v = array(2, 3), array(4, 1, 2)
        np.testing.assert_allclose(wf.kron(wf.from_numpy(u), wf.from_numpy(v)).numpy(), np.kron(u, v))
        p, q = array(2, 3, 4), array(4, 3, 5)
        for dims in (1, ([1, 2], [1, 0]), ([2], [0])):
            got = wf.tensordot(wf.from_numpy(p), wf.from_numpy(q), dims)
            np.testing.assert_allclose(got.numpy(), np.tensordot(p, q, dims), atol=1e-12)

    def test_beta_zero_ignores_even_nan(self):
        nan = wf.from_numpy(np.full((2, 2), np.nan))
        a = tensor(2, 2)
        out = wf.addmm(nan, a, a, beta=0, alpha=2)
        np.testing.assert_allclose(out.numpy(), 2 * (a.numpy() @ a.numpy()))

    def test_in_place_forms_write_into_their_tensor(self):
        x, a, b = tensor(2, 4), tensor(2, 3), tensor(3, 4, seed=1)
        want = 0.5 * x.numpy() + 2 * (a.numpy() @ b.numpy())
        address = x.numpy().ctypes.data
        assert x.addmm_(a, b, beta=0.5, alpha=2) is x
        np.testing.assert_allclose(x.numpy(), want)
        assert x.numpy().ctypes.data == address

    def test_a_chain_is_multiplied_in_the_cheapest_order(self):
        # The textbook's example: 30×35, 35×15, 15×5, 5×10, 10×20, 20×25 splits after the third matrix.
        splits = _cheapest_splits([30, 35, 15, 5, 10, 20, 25])
        assert splits[0, 6] == 3
        assert splits[0, 3] == 1
        assert splits[3, 6] == 5
        parts = [array(*s) for s in ((2, 3), (3, 4), (4, 5), (5,))]
        got = wf.linalg.multi_dot([wf.from_numpy(p) for p in parts])
        np.testing.assert_allclose(got.numpy(), np.linalg.multi_dot(parts))


class TestLinear:
    def test_it_is_one_node_with_gradients_laid_out_like_their_tensors(self):
        x, w, b = (tensor(*s).requires_grad_() for s in ((5, 2, 3), (4, 3), (4,)))
        y = F.linear(x, w, b)
        assert [edge[0].name() for edge in y.grad_fn.next_functions] == ["AccumulateGrad"] * 3
        np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy() @ w.detach().numpy().T + b.detach().numpy())
        y.backward(wf.from_numpy(np.ones(y.shape)))
        assert w.grad.numpy().flags.c_contiguous
        assert [t.grad.shape for t in (x, w, b)] == [t.shape for t in (x, w, b)]

    def test_errors_name_what_does_not_fit(self):
        x = tensor(2, 3)
        with pytest.raises(ShapeError, match=r"f64\[2,3\] has 3 features .* f64\[3,4\] takes 4.*did you mean w\.T"):
            F.linear(x, tensor(3, 4))
        with pytest.raises(ShapeError, match=r"a bias of f64\[5\] does not fit a weight of f64\[4,3\]"):
            F.linear(x, tensor(4, 3), tensor(5))
        with pytest.raises(DTypeError, match="one dtype"):
            F.linear(x, tensor(4, 3), tensor(4, dtype=np.float32))
        with pytest.raises(ShapeError, match=r"bilinear: inputs f64\[2,3\] and f64\[2,5\]"):
            F.bilinear(x, tensor(2, 5), tensor(4, 3, 3))


LABELS = "abcde"


@st.composite
def equations(draw):
    """A random equation over up to three operands, and the sizes of its labels."""
    terms = [draw(st.text(LABELS, max_size=3)) for _ in range(draw(st.integers(1, 3)))]
    used = sorted(set("".join(terms)))
    out = draw(st.permutations(used)) if used else []
    out = "".join(out[: draw(st.integers(0, len(out)))])
    return f"{','.join(terms)}->{out}", {c: draw(st.integers(0, 3)) for c in used}


class TestEinsum:
    @given(equations())
    def test_it_agrees_with_numpy(self, drawn):
        equation, sizes = drawn
        terms = equation.split("->")[0].split(",")
        arrays = [array(*(sizes[c] for c in term), seed=i) for i, term in enumerate(terms)]
        got = wf.einsum(equation, *(wf.from_numpy(np.array(a)) for a in arrays))
        want = np.einsum(equation, *arrays)
        assert tuple(got.shape) == np.shape(want)
        np.testing.assert_allclose(got.numpy(), want, atol=1e-11)

    @pytest.mark.parametrize("equation, shapes", [
        ("ij,jk", ((2, 3), (3, 4))),
        ("ba", ((2, 3),)),
        ("ii", ((3, 3),)),
        ("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))),
        ("...ij,jk", ((2, 3, 4), (4, 2))),
        ("i...,i...->...", ((3, 2, 4), (3, 2, 4))),
        (" i j , j -> i ", ((2, 3), (3,))),
        ("...,...", ((2, 3), (3,))),
        ("b...->...", ((2, 3, 4),)),
        ("aB,Bc", ((2, 3), (3, 4))),
    ])  # fmt: skip
    def test_every_way_of_writing(self, equation, shapes):
        arrays = [array(*s, seed=i) for i, s in enumerate(shapes)]
        got = wf.einsum(equation, *(wf.from_numpy(a) for a in arrays))
        np.testing.assert_allclose(got.numpy(), np.einsum(equation, *arrays), atol=1e-12)

    def test_dimensions_of_dots_left_out_of_the_result_are_summed(self):
        x = array(2, 3, 4)
        np.testing.assert_allclose(wf.einsum("...i->i", wf.from_numpy(x)).numpy(), x.sum((0, 1)))

    def test_lists_of_numbers_and_a_list_of_tensors(self):
        a, b = tensor(2, 3), tensor(3, 4)
        want = (a @ b).numpy()
        np.testing.assert_allclose(wf.einsum(a, [0, 1], b, [1, 2], [0, 2]).numpy(), want)
        np.testing.assert_allclose(wf.einsum(a, [0, 1], b, [1, 2]).numpy(), want)
        np.testing.assert_allclose(wf.einsum(a, [..., 1], b, [1, 2], [..., 2]).numpy(), want)
        np.testing.assert_allclose(wf.einsum("ij,jk->ik", [a, b]).numpy(), want)

    def test_size_one_broadcasts_and_its_gradient_is_summed(self):
        a, b = tensor(1, 4).requires_grad_(), tensor(3, 4)
        out = wf.einsum("ij,ij->ij", a, b)
        np.testing.assert_allclose(out.detach().numpy(), a.detach().numpy() * b.numpy())
        out.backward(wf.from_numpy(np.ones((3, 4))))
        np.testing.assert_allclose(a.grad.numpy(), b.numpy().sum(0, keepdims=True))

    def test_the_result_never_shares_memory_with_its_operand(self):
        x = tensor(2, 3)
        for equation in ("ij->ij", "ij->ji"):
            assert not np.shares_memory(wf.einsum(equation, x).numpy(), x.numpy())

    def test_the_result_is_in_row_order_when_it_can_be(self):
        out = wf.einsum("ij,jk->ki", tensor(2, 3), tensor(3, 4))
        assert out.numpy().flags.c_contiguous

    @pytest.mark.parametrize("equation, shapes, error, words", [
        ("ij,jk->ik", ((2, 3), (4, 5)), ShapeError, "label 'j' of 'ij,jk->ik' stands for sizes 3 and 4"),
        ("ij->ik", ((2, 3),), OperationError, "label 'k' of the output"),
        ("ij->ii", ((2, 3),), OperationError, "label 'i' occurs twice in the output"),
        ("ij,jk->ik", ((2, 3),), OperationError, "is about 2 operands, and 1 were given"),
        ("ijk->i", ((2, 3),), ShapeError, "operand 0 has 2 dimensions"),
        ("i->i", ((2, 3),), ShapeError, r"use `\.\.\.` for the others"),
        ("i1->i", ((2, 3),), OperationError, "'1' in 'i1->i' is not a label"),
    ])  # fmt: skip
    def test_errors_name_the_label(self, equation, shapes, error, words):
        with pytest.raises(error, match=words):
            wf.einsum(equation, *(tensor(*s) for s in shapes))

    def test_operands_of_two_dtypes(self):
        with pytest.raises(DTypeError, match="einsum: all operands must have one dtype"):
            wf.einsum("i,i->", tensor(3), tensor(3, dtype=np.float32))

    def test_vmap_puts_a_new_label_in_front(self):
        a, b = tensor(5, 2, 3), tensor(3, 4)
        got = wf.vmap(lambda x: wf.einsum("ij,jk->ki", x, b))(a)
        np.testing.assert_allclose(got.numpy(), np.einsum("bij,jk->bki", a.numpy(), b.numpy()), atol=1e-12)


def test_an_input_that_does_not_count_has_a_gradient_of_zeros():
    x, a = wf.full((2, 2), float("nan"), requires_grad=True), wf.ones(2, 2)
    stack = a.reshape(1, 2, 2)
    for out in (wf.addmm(x, a, a, beta=0), wf.addmv(x, a, a[0], beta=0), wf.addr(x, a[0], a[0], beta=0),
                wf.addbmm(x, stack, stack, beta=0), wf.baddbmm(x, stack, stack, beta=0)):  # fmt: skip
        assert bool(out.isfinite().all()) and wf.autograd.grad(out.sum(), x)[0].tolist() == [[0, 0], [0, 0]]
