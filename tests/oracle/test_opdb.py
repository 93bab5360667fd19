"""Every entry of PyTorch's operator database that Wayfare has must agree with PyTorch on every sample."""

from __future__ import annotations

import fnmatch
import re

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs expecttest: pip install expecttest")

import torch

import wayfare as wf
from tests.oracle.bad_input import check_bad_input
from tests.oracle.check import check_entry, check_in_place, check_method
from tests.oracle.entries import database, find_in_place, find_method, found
from tests.oracle.policies import KNOWN_DIFFERENCES
from tests.oracle.reasons import REASONS, reason
from tests.oracle.report import PAGE
from tests.oracle.summary import PROPERTY

# Raise it as the coverage grows; it never falls.
MINIMUM_ENTRIES = 600

FOUND = [entry for entry in found(wf) if entry.name not in KNOWN_DIFFERENCES]


def _cases(entries):
    for entry in entries:
        for dtype in entry.dtypes:
            yield pytest.param(entry, dtype, id=f"{entry.name}-{str(dtype).removeprefix('torch.')}")


def _methods(finder):
    """One dtype is enough for the other forms of an entry: they share the body of its function."""
    for entry in FOUND:
        if finder(wf, entry) is not None:
            yield pytest.param(entry, id=entry.name)


@pytest.fixture(autouse=True)
def _one_thread():
    """The samples are tiny and other workers run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("entry", "dtype"), list(_cases(FOUND)))
def test_values_and_gradients(entry, dtype, record_property):
    outcome = check_entry(wf, entry, dtype)
    summary = {"entry": entry.name, "agrees": outcome.agrees}
    record_property(PROPERTY, summary | {"samples": outcome.checked, "gradients": outcome.gradients})
    assert outcome.agrees, outcome.verdict


@pytest.mark.parametrize("entry", list(_methods(find_method)))
def test_method(entry):
    outcome = check_method(wf, entry, entry.dtypes[0])
    assert outcome is None or not outcome.failures, outcome.verdict


@pytest.mark.parametrize("entry", list(_methods(find_in_place)))
def test_in_place(entry):
    outcome = check_in_place(wf, entry, entry.dtypes[-1])
    assert outcome is None or not outcome.failures, outcome.verdict


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: entry.name)
def test_errors_are_our_own(entry):
    """An input that PyTorch refuses never ends in an exception of NumPy's."""
    assert not check_bad_input(wf, entry, wf.errors.WayfareError).unclear


def test_enough_entries_are_covered():
    assert len(FOUND) >= MINIMUM_ENTRIES


def test_every_absent_entry_has_a_reason_and_every_reason_an_entry():
    covered = {entry.name for entry in FOUND} | set(KNOWN_DIFFERENCES)
    absent = [name for name in database() if name not in covered]
    assert not [name for name in absent if reason(name) is None]
    assert not [pattern for pattern in REASONS if not fnmatch.filter(absent, pattern)]


def test_coverage_page_lists_the_covered_entries():
    listed = re.findall(r"^\| `([^`]+)` \| \d+ \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(entry.name for entry in FOUND), "run python -m tests.oracle.report"


def test_known_differences_are_real_entries_with_reasons():
    assert set(KNOWN_DIFFERENCES) <= set(database())
    assert all(KNOWN_DIFFERENCES.values())
