"""The hostile grid: every kernel over axes of what has ever gone wrong, beside attention in float64."""

from __future__ import annotations

import pytest

from tests.kernels.hostile.kernels import KERNELS

EVERY = 25
"""Of so many cases of a kernel one is quick enough to be run every time."""

CASES = [
    pytest.param(
        *(kernel, case, seed),
        id=" ".join([f"{name.replace(' ', '-')}:", *case.values()]),
        marks=[pytest.mark.slow] if seed % EVERY else [],
    )
    for name, kernel in KERNELS.items()
    for seed, case in enumerate(kernel.cases())
]


# Of a large score 2^score is infinity, as on a GPU (which says nothing of it), and its soft cap ±1.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")
@pytest.mark.parametrize(("kernel", "case", "seed"), CASES)
def test_no_error_is_larger_than_its_type_allows(kernel, case, seed, device):
    assert kernel.excess(case, seed, device) <= 1
