"""Kernels are interpreted in a process of its own: Triton looks at TRITON_INTERPRET once, when imported."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
