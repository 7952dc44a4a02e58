"""The measure of the simulator's speed: rows that add up, through what is public alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MEASURE = Path(__file__).with_name("measure.py")
TINY = ("--policies", "vllm-sosp", "--loads", "saturated", "--requests", "60")


def measured(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(MEASURE), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_a_row_adds_up() -> None:
    row = measured(*TINY, "--n", 2, "--option", "watermark=0.02")
    assert (row["requests"], row["n"], row["options"]["watermark"]) == (60, 2, 0.02)
    assert row["timeouts_per_request"] == pytest.approx(
        row["timeouts_per_decision"] * row["decisions_per_request"]
    )
    assert row["requests_per_s"] == pytest.approx(60 / row["cpu_s"])
    assert 1 < row["timeouts_per_request"] < 10_000
    assert 0.01 < row["bare_timeout_us"] < 100
    assert row["peak_rss_mb"] > 20


@pytest.mark.slow
def test_a_checkout_takes_about_as_long_as_itself() -> None:
    row = measured(*TINY, "--pair", MEASURE.parents[2], "--rounds", 1)
    assert 0.2 < row["ratio"] < 5
    assert row["ratios"] == [row["ratio"]]
