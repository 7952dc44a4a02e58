"""What several tests need: the published traces and the golden logs, where they are at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import simpy
from hypothesis import settings

from pagesim.setup import plugins

# The same examples in every run; --hypothesis-profile=search looks for others.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("search", max_examples=10_000)
settings.load_profile("repeatable")

SHARED = Path(__file__).resolve().parents[1].parent / "shared"

QUIET_TIMEOUT_S = 0.68e-6
"""What a bare SimPy timeout takes on the machine for which times are stated, with nothing else running."""


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    """What a test, or a page of the documentation, registers is gone when it is over."""
    yield
    for option in plugins.HOMES:
        plugins.plugins(option)._registered.clear()


@pytest.fixture
def slowdown() -> Callable[[], float]:
    """Return how many times slower than that this machine is at the moment; 1 if it is as fast or faster."""

    def measure() -> float:
        environment = simpy.Environment()

        def wait() -> Generator[simpy.Event]:
            for _ in range(200_000):
                yield environment.timeout(1)

        environment.process(wait())
        started = time.perf_counter()
        environment.run()
        return max(1.0, (time.perf_counter() - started) / 200_000 / QUIET_TIMEOUT_S)

    return measure


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of published traces and golden logs that may stand beside a checkout."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared with published traces and golden logs is absent")
    return SHARED


@pytest.fixture(scope="session")
def sharegpt(shared: Path) -> Path:
    """Return the PagedAttention paper's own ShareGPT lengths."""
    return shared / "data" / "sharegpt_sosp23_opt.parquet"
