"""What several tests need: the published traces and the golden logs, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


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
