"""What all tests of devices need: one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Two threads would fight for a busy core; and without torch nothing of this can run."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
