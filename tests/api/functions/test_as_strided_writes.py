"""Writing through `as_strided`: as in PyTorch where no two elements share memory, refused where they do."""

from __future__ import annotations

from typing import Any

import pytest

import wayfare as wf


def test_a_write_reaches_the_tensor() -> None:
    torch = pytest.importorskip("torch")
    for size, stride, offset in (((2, 2), (1, 2), 0), ((3,), (5,), 4), ((2, 3), (12, 1), 1), ((4, 1), (6, 9), 2)):
        ours, theirs = wf.arange(24.0), torch.arange(24.0)
        for t in (ours, theirs):
            t.as_strided(size, stride, offset).add_(100)
        assert ours.tolist() == theirs.tolist()
        view = ours.as_strided(size, stride, offset)
        ours.zero_()
        assert view.sum().item() == 0


def test_a_write_is_noticed_by_gradients() -> None:
    torch = pytest.importorskip("torch")
    gradients: list[Any] = []
    for lib in (wf, torch):
        w = lib.arange(6.0).requires_grad_()
        y = w * 2
        y.as_strided((2, 2), (1, 3)).mul_(5)
        (y * lib.arange(6.0)).sum().backward()
        gradients.append(w.grad.tolist())
    assert gradients[0] == gradients[1]


def test_a_saved_tensor_that_was_written_is_noticed() -> None:
    w = wf.ones(6, requires_grad=True)
    y = w * 2
    z = y.square().sum()
    with wf.no_grad():
        y.as_strided((2,), (3,)).zero_()
    with pytest.raises(RuntimeError, match="in-place operation"):
        z.backward()


def test_shared_elements_are_refused() -> None:
    x = wf.arange(24.0)
    for size, stride in (((2, 2), (0, 2)), ((3, 3), (1, 1))):
        with pytest.raises(RuntimeError, match="share memory"):
            x.as_strided(size, stride).add_(1)


def test_a_part_of_a_tensor_is_not_written_beyond_its_end() -> None:
    x = wf.arange(24.0)
    with pytest.raises(RuntimeError, match="beyond"):
        x[:4].as_strided((6,), (2,)).add_(1)
    assert x.tolist() == [float(i) for i in range(24)]


def test_the_same_compiled_and_mapped() -> None:
    def write(x: Any) -> Any:
        y = x * 1
        y.as_strided((2, 2), (1, 3)).add_(10)
        return y.sum(), y

    x = wf.arange(6.0)
    expected = write(x)[1].tolist()
    compiled = wf.compile(write)
    for _ in range(4):
        assert compiled(x)[1].tolist() == expected
    assert [y.tolist() for _, y in wf.map(write, [x, x + 0])] == [expected, expected]
