"""Writes what the program written from SGLang's rules decides for ranks of attention, as JSON.

It runs as a process of its own, because the program ends its process where one of its ranks stops.

Usage: ranks_program.py FOLDER LOG --trace FILE --dp-size N --prefill-graph-max-bs TOKENS FLAGS…
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

RANK_CONSERVATIVENESS = 0.3
"""Source: SGLang 0.5.23, ``srt/arg_groups/parallel_hook.py`` 318."""


def main() -> None:
    """Let all ranks run to their end."""
    folder, log, *flags = sys.argv[1:]
    sys.argv = [sys.argv[0], *flags]  # which the program looks at
    sys.path.insert(0, folder)
    common, program = (importlib.import_module(name) for name in ("common", "mini_dp"))
    parser = common.parser("")
    parser.add_argument("--dp-size", type=int)
    parser.add_argument("--prefill-graph-max-bs", type=int)
    asked = parser.parse_args(flags)
    size = asked.dp_size
    asked.chunked_prefill_size //= size
    asked.schedule_conservativeness *= RANK_CONSERVATIVENESS
    if asked.max_running_requests:
        asked.max_running_requests = max(1, asked.max_running_requests // size)
    world = program.World(size)
    world.spins, world.log = 0, []
    world.ranks = [program.Rank(asked, number, world) for number in range(size)]
    world.run([rank.loop for rank in world.ranks])
    Path(log).write_text(json.dumps(world.log), encoding="utf-8")


if __name__ == "__main__":
    main()
