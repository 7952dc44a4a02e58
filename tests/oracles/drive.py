"""Drive an unpacked vLLM: ``python drive.py v1 FOLDER``, the logs to make on stdin, one JSON object a line.

Of each it leaves ``{"steps": [row, …], "requests": [row, …]}`` in the file ``out``, and writes a line on
stdout: the log's name and, after a tab, what went wrong, if anything did.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from options import options_of
from stubs import make_importable
from traces import read_trace


def main(engine: str, folder: Path) -> None:
    """Make every log that stands on stdin."""
    # vLLM logs to what is sys.stdout when it is imported.
    answers, sys.stdout = sys.stdout, sys.stderr
    make_importable(engine, folder)
    driver = importlib.import_module(engine)
    for line in sys.stdin:
        job = json.loads(line)
        failure = ""
        try:
            tables = driver.drive(read_trace(Path(job["trace"])), options_of(engine, job["options"]))
            Path(job["out"]).write_text(json.dumps(tables), encoding="utf-8")
        except Exception as error:
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"{job['name']}\t{failure}", file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
