"""These tests run every kernel where the process can: on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels run."""
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Let a failure be repeated."""
    torch.manual_seed(0)
