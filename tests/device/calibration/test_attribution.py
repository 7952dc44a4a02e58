"""What a calibration attributes to each term is what that term takes: on a device whose costs are known."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pagesim as ps  # noqa: E402
from pagesim.device.calibration import calibrate  # noqa: E402
from pagesim.device.validation import validate  # noqa: E402
from pagesim.setup.system import System, checked  # noqa: E402

A_PERCENT = 0.01


@pytest.fixture
def known(fake_device, small_grid):
    """Return the fake device and the profile that a calibration makes of it."""
    device = fake_device()
    return device, calibrate("tiny", device="cpu", name="fake", seconds=0.002).profile


def test_every_term_is_recovered_to_within_a_percent(known):
    device, profile = known
    terms, costs = profile.terms, device.costs
    for name in ("linear", "head", "write", "overhead"):
        for size in (1, 3, 7, 20, 32):
            assert terms.at(name, 0)(size) == pytest.approx(getattr(costs, name)(size), rel=A_PERCENT), name
    for batch, context in ((1, 16), (3, 100), (10, 700), (32, 4096)):
        found, true = terms.decode[16](batch, context / batch), costs.decode(batch, context)
        assert found == pytest.approx(true, rel=A_PERCENT)
    for tokens, pairs in ((8, 36), (64, 2080), (100, 5050), (128, 8256)):
        found, true = terms.prefill[16](tokens, pairs / tokens), costs.prefill(tokens, pairs)
        assert found == pytest.approx(true, rel=A_PERCENT)
    for name in ("copy", "swap_out", "swap_in"):
        for count in (1, 3, 9, 16):
            found, true = terms.at(name, 16)(count), getattr(costs, name)(count)
            assert found == pytest.approx(true, rel=A_PERCENT), name
    assert max(error.worst for error in profile.errors.values()) < A_PERCENT
    assert all(error.points for error in profile.errors.values())


@pytest.mark.slow
def test_what_one_part_takes_is_not_put_on_another(fake_device, small_grid):
    """Each part alone is made to last: its term alone must show it."""
    sizes = {"linear": 32, "head": 8, "write": 32, "overhead": 8}
    for slow in ("linear", "head", "write", "overhead"):
        fake_device(**{slow: lambda size: 0.1 + 1e-3 * size})
        terms = calibrate("tiny", device="cpu", name="fake", seconds=0.002).profile.terms
        for name, size in sizes.items():
            value = terms.at(name, 0)(size)
            assert (value > 0.09) == (name == slow), f"{slow} is slow; {name} takes {value} s"


@pytest.mark.slow
def test_a_live_run_on_that_device_is_predicted_to_within_a_percent(known, tmp_path):
    _, profile = known
    profile.save(tmp_path / "fake.json")
    random = np.random.default_rng(3)
    trace = ps.Trace(np.zeros(10), random.integers(20, 90, 10), random.integers(4, 40, 10))
    system = checked(
        System,
        {
            "model": "tiny",
            "num_blocks": 30,
            "cost": f"profile:{tmp_path / 'fake.json'}",
            "max_model_len": 200,
        },
    )
    policies = ("vllm-sosp", "vllm-v0", "vllm-v1")
    cases = list(validate(system, trace, policies=policies, device="cpu", check=False))
    assert [case.name for case in cases] == [
        "vllm-sosp, recompute",
        "vllm-v0, recompute",
        "vllm-v1",
        "vllm-sosp, swap",
        "vllm-v0, swap",
    ]
    seen = set()
    for case in cases:
        report = case.report()
        for kind, each in report["same_schedule"].items():
            seen.add(kind)
            assert each["absolute"] < A_PERCENT, (case.name, kind, each)
        for metric, by in report["end_to_end"].items():
            for each in by.values():
                assert abs(each["error"]) < A_PERCENT, (case.name, metric, each)
        assert sum(report["preemptions"]["live"].values()) > 0, "without pressure nothing is shown"
    assert seen == {"prefill", "decode", "mixed", "with swap", "all"}


@pytest.mark.slow
def test_an_overhead_below_the_noise_is_said(fake_device, small_grid):
    fake_device(overhead=lambda sequences: 0.0)
    profile = calibrate("tiny", device="cpu", name="fake", seconds=0.002).profile
    assert any("took no longer than its parts" in note for note in profile.notes)
