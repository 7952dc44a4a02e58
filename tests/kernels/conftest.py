"""Which of these tests this process can run, and the table of what was compiled."""

from __future__ import annotations

import os
from importlib.util import find_spec


def runs_kernels() -> bool:
    """Whether kernels run in this process: on a GPU, or interpreted (Triton decides when it is imported)."""
    if find_spec("torch") is None or find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    import torch

    return torch.cuda.is_available()


collect_ignore = [] if runs_kernels() else ["ops"]
