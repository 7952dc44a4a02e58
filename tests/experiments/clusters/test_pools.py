"""Prefill apart from decode: no request and no block is lost, and fast-forward changes nothing."""

from __future__ import annotations

import pandas as pd
from hypothesis import given

import pagesim as ps
from tests.experiments.clusters.pool_systems import Case, cases


@given(case=cases())
def test_fast_forwards_change_nothing(case: Case) -> None:
    forwarding, stepping = (
        ps.simulate_pools(case.trace, **case.options, fast_forward=fast_forward)
        for fast_forward in (True, False)
    )
    pd.testing.assert_frame_equal(forwarding.requests, stepping.requests, check_exact=True)
    pd.testing.assert_frame_equal(forwarding.replicas, stepping.replicas, check_exact=True)
    for result in (forwarding, stepping):
        del result.summary["sim"]
    assert forwarding.summary == stepping.summary
