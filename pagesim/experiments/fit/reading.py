"""Reading: logs of one server to loads, and the server from what they say of it and from flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError
from pagesim.experiments.fit.iterations import check
from pagesim.experiments.recorded import find
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.setup.system import System, checked

OF_ALL = ("policy", "model", "gpu", "tensor_parallel_size", "vllm_version", "kv_cache_dtype", "block_size")
"""What must be the same in all logs; the other options may differ from load to load."""


def read(
    logs: Sequence[Path],
    held_out: Sequence[Path],
    flags: Mapping[str, Any],
    server: Mapping[str, Any] | None = None,
) -> tuple[System, tuple[RecordedRun, ...]]:
    """Return the server, and its loads: those to fit to, and those held out, each with its own options.

    Args:
        logs: files to fit to.
        held_out: files to predict.
        flags: options of the system that were given; they win over what a log says.
        server: options that the server said of itself; a load's own win over them.

    Raises:
        PagesimError: a file is no log that can be read, logs are of several servers, or an option is missing.
    """
    found = [_one(file) for file in (*logs, *held_out)]
    pairs = [(load, {**(server or {}), **settings}) for load, settings in found]
    values: dict[str, Any] = {"policy": "vllm-v1"}
    for name in OF_ALL:
        said = {str(settings[name]): settings[name] for _, settings in pairs if name in settings}
        if name not in flags and len(said) > 1:
            raise PagesimError(
                f"{name} is {' and '.join(said)}, by the logs; one profile is of one server: fit them apart"
            )
        if said:
            values[name] = next(iter(said.values()))
    values |= flags
    if "model" not in values:
        raise PagesimError("model is not said by the logs; give --model")
    blocks = all("num_blocks" in {**settings, **flags} for _, settings in pairs)
    if "gpu" not in values and not blocks:
        raise PagesimError("neither gpu nor num_blocks is said by the logs; give --gpu or --num-blocks")
    own = [{k: v for k, v in settings.items() if k not in OF_ALL and k not in flags} for _, settings in pairs]
    system = checked(System, values)
    for (load, _), options in zip(pairs, own, strict=True):
        checked(System, {**values, **options}, load.name)
    names = _names((*logs, *held_out))
    return system, tuple(
        replace(load, name=name, server=options)
        for name, (load, _), options in zip(names, pairs, own, strict=True)
    )


def _names(files: Sequence[Path]) -> list[str]:
    """Return a name for each file, short if it can be."""
    # Every run of LLMServingSim has a file of the same name, in a folder of its own.
    names = [file.resolve().parent.name if file.stem == "requests" else file.stem for file in files]
    return names if len(set(names)) == len(names) else [str(file) for file in files]


def _one(file: Path) -> tuple[RecordedRun, dict[str, Any]]:
    """Return the load of a file, and what it says of the server, by options' names."""
    runs = find.read(file)
    if len(runs) != 1:
        raise PagesimError(f"{file}: holds {len(runs)} runs; a fit takes a file a load, give each its own")
    (run,) = runs
    check(run)
    return run, dict(run.server)
