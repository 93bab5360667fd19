"""Why an entry of the database is not covered; every uncovered entry must match a row, and every row is needed."""

from __future__ import annotations

import fnmatch

_COMPLEX = "complex numbers are out of scope"
_INTERNAL = "an internal of PyTorch, not part of its public API"
_SPARSE = "sparse layouts are out of scope; `Rows` gradients serve embeddings and indexing"

# First match wins. Names are matched with their variant.
REASONS: dict[str, str] = {
    "fft.*": _COMPLEX,
    "*stft": _COMPLEX,
    "complex": _COMPLEX,
    "polar": _COMPLEX,
    "imag": _COMPLEX,
    "view_as_real": _COMPLEX,
    "view_as_complex": _COMPLEX,
    "cdouble": _COMPLEX,
    "cfloat": _COMPLEX,
    "chalf": _COMPLEX,
    "nn.functional.silu.complex": _COMPLEX,
    "linalg.eig*": "eigenvalues of a general matrix are complex, which is out of scope",
    "sparse.*": _SPARSE,
    "to_sparse": _SPARSE,
    "torch._scaled_mm*": "8-bit floats are out of scope",
    "jiterator_*": "compiles CUDA source, runs on a GPU only",
    "nn.functional.batch_norm.without_cudnn": "runs on a GPU only",
    "_*": _INTERNAL,
    "torch.ops.*": _INTERNAL,
    "native_*": _INTERNAL,
    "hash_tensor": _INTERNAL,
    "max_pool2d_with_indices_backward": _INTERNAL,
    "constant_pad_nd": "what `nn.functional.pad` calls; that is covered",
    "masked.*": "torch.masked is a prototype API; `where`, `masked_fill` and boolean indexing do its work",
    "*_lowrank": "its random projections make the result depend on the generator",
    "linalg.ldl_*": "hands LAPACK's packed factors to the user; `linalg.solve` covers the use",
}


def reason(name: str) -> str | None:
    """Why the entry is not covered, or None where nobody has said."""
    for pattern, why in REASONS.items():
        if fnmatch.fnmatchcase(name, pattern):
            return why
    return None
