"""Reading: identifies the server of several runs from the runs' own data and from flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError
from pagesim.experiments.fit.iterations import check
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.setup.system import System, checked

OF_ALL = ("policy", "model", "gpu", "tensor_parallel_size", "vllm_version", "kv_cache_dtype", "block_size")
"""Options that must be equal in all logs; others may differ between loads."""


def one_server(
    runs: Sequence[RecordedRun], flags: Mapping[str, Any]
) -> tuple[System, tuple[RecordedRun, ...]]:
    """Return the server of these runs, and the runs as its loads, each with its own options.

    Args:
        runs: runs to fit to or to predict.
        flags: system options given by the user, which override a log's.

    Raises:
        PagesimError: a run cannot be fitted to, the runs are of several servers, or an option is missing.
    """
    for each in runs:
        check(each)
    values: dict[str, Any] = {"policy": "vllm-v1"}
    for name in OF_ALL:
        said = {str(run.server[name]): run.server[name] for run in runs if name in run.server}
        if name not in flags and len(said) > 1:
            raise PagesimError(
                f"{name} is {' and '.join(said)}, by the logs; one profile is of one server: fit them apart"
            )
        if said:
            values[name] = next(iter(said.values()))
    values |= flags
    if "model" not in values:
        raise PagesimError("model is not said by the logs; give --model")
    if "gpu" not in values and not all("num_blocks" in {**run.server, **flags} for run in runs):
        raise PagesimError("neither gpu nor num_blocks is said by the logs; give --gpu or --num-blocks")
    # All runs of LLMServingSim have files of the same name, each in its own folder.
    files = [Path(run.name).resolve() for run in runs]
    names = [file.parent.name if file.stem == "requests" else file.stem for file in files]
    loads = []
    for run, name in zip(runs, names, strict=True):
        own = {k: v for k, v in run.server.items() if k not in OF_ALL and k not in flags}
        checked(System, {**values, **own}, run.name)
        loads.append(replace(run, name=name if names.count(name) == 1 else run.name, server=own))
    return checked(System, values), tuple(loads)
