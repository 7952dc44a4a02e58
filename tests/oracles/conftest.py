"""What the command consists of is imported from beside it; pytest itself needs no vLLM."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
