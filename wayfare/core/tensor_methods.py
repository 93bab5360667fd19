"""Methods of Tensor that are also public functions: installed from the functions, declared in a stub.

`tensor_methods.pyi`, which type checkers and editors read, is generated from the functions' own signatures
(`python tools/make_stubs.py`), and a test keeps it current.
"""

from __future__ import annotations


class TensorMethods:
    """Base of Tensor; empty here, because the methods are set on Tensor itself when the package is imported."""

    __slots__ = ()
