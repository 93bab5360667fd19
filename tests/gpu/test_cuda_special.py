"""Special functions that CUDA lacks, in emulation against SciPy, over all of their ranges and at their ends."""

import numpy as np
import pytest
from scipy import special

from tests.gpu.cases import needs_compiler
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda.kernel import CudaKernel
from wayfare.codegen.cuda.special import SPECIAL
from wayfare.codegen.loop.expr import call, load
from wayfare.codegen.loop.language import elementwise

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.5, 1e-300, 5e-324, 1e300]


def computed(name, *arrays):
    loop = elementwise(name, ["f64"] * len(arrays), call(name, *(load(k, "f64") for k in range(len(arrays)))))
    return CudaKernel(loop, HostLauncher())(list(arrays))[0]


ONE = sorted(name for name in SPECIAL if "gammainc" not in name)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_number(name):
    plain = name.removeprefix("scipy_")
    of_scipy = special.psi if plain == "digamma" else getattr(special, plain)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-30, 30, 2000), 10.0 ** rng.uniform(-12, 2.8, 2000), np.linspace(0.01, 60, 500)])
    if plain == "digamma":
        # Near a pole or a root no digits are left to compare.
        x = x[np.abs(x - np.round(x)) > 1e-3]
        x = x[np.abs(special.psi(x)) > 1e-2]
    np.testing.assert_allclose(computed(name, x), of_scipy(x), 1e-12 if plain == "digamma" else 4e-15)
    # SciPy makes NaN of i0 and i1 at infinity, where they are infinite.
    ends = np.array([x for x in ENDS if np.isfinite(x) or plain not in ("i0", "i1")])
    np.testing.assert_array_equal(np.isnan(computed(name, ends)), np.isnan(of_scipy(ends)))


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions(name):
    rng = np.random.default_rng(0)
    a, x = 10.0 ** rng.uniform(-3, 2, 4000), 10.0 ** rng.uniform(-3, 2.3, 4000)
    got, want = computed("scipy_" + name, a, x), getattr(special, name)(a, x)
    np.testing.assert_allclose(got, want, 1e-12, 1e-14)
    ends = np.array([0.0, 1.0, np.inf, np.nan, -1.0, 2.5])
    a, x = (m.ravel() for m in np.meshgrid(ends, ends))
    np.testing.assert_allclose(computed("scipy_" + name, a, x), getattr(special, name)(a, x), 1e-13)
