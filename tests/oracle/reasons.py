"""Why an entry of the database is not covered, by area or by name; every absent entry must match a row."""

from __future__ import annotations

import fnmatch

_COMPLEX = "complex numbers are out of scope"
_INTERNAL = "an internal of PyTorch, not part of its public API"
_SPARSE = "sparse layouts are out of scope; `Rows` gradients serve embeddings and indexing"
_QUANTISED = "8-bit floats are out of scope"
_BFLOAT16 = "NumPy has no bfloat16"
_MASKED = "torch.masked is a prototype API; `where`, `masked_fill` and boolean indexing do its work"
_SIGNAL = "window functions of signal processing, which scipy.signal has"
_POLYNOMIALS = "Bessel functions and orthogonal polynomials without gradients, which scipy.special has"
_RANDOMISED = "its random projections make the result depend on the generator"
_CUDA = "compiles CUDA source, runs on a GPU only"
_FACTORS = "hands LAPACK's packed factors to the user; `solve`, `inv`, `qr` and `cholesky` cover the use"
_COPIES = "a copying twin of a view, made for PyTorch's functionalisation; the view and `clone` are covered"
_LEGACY = "deprecated in PyTorch in favour of torch.linalg"
_LAYERS = "belongs to the layers, which are not written yet"

# First match wins. Names are matched with their variant.
_REASONS: tuple[tuple[str, str], ...] = (
    ("jiterator_*", _CUDA),
    ("bmm.triton_optimized", _CUDA),
    ("fft.* stft istft", _COMPLEX),
    ("complex polar view_as_* imag real cdouble cfloat chalf nn.functional.silu.complex", _COMPLEX),
    ("linalg.eig linalg.eigvals", "eigenvalues of a general matrix are complex, which is out of scope"),
    ("sparse.* to_sparse", _SPARSE),
    ("torch._scaled_mm*", _QUANTISED),
    ("bfloat16", _BFLOAT16),
    ("torch.ops.* _* hash_tensor max_pool2d_with_indices_backward native_* grid_sampler_?d", _INTERNAL),
    ("masked.*", _MASKED),
    ("signal.*", _SIGNAL),
    ("special.*bessel* special.*polynomial* special.airy_ai special.zeta", _POLYNOMIALS),
    ("svd_lowrank pca_lowrank", _RANDOMISED),
    ("lu lu_* geqrf ormqr linalg.lu* linalg.ldl_* linalg.householder_product cholesky_inverse", _FACTORS),
    ("triangular_solve cholesky qr svd pinverse", _LEGACY),
    ("*_copy", _COPIES),
    (
        "nn.functional.conv* nn.functional.*pool* nn.functional.interpolate.* nn.functional.upsample_* "
        "nn.functional.grid_sample nn.functional.pixel_* nn.functional.channel_shuffle nn.functional.unfold "
        "nn.functional.*_norm nn.functional.batch_norm* nn.functional.*dropout* nn.functional.embedding_bag "
        "nn.functional.multi_head_* nn.functional.scaled_dot_* nn.functional.bilinear nn.functional.ctc_loss "
        "nn.functional.linear_cross_entropy* nn.functional.rrelu",
        _LAYERS,
    ),
    ("as_strided.partial_views", "reads memory outside the tensor it is given"),
)


def reason(name: str) -> str | None:
    """Why the entry is not covered, or None where nobody has said."""
    for patterns, why in _REASONS:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split()):
            return why
    return None
