"""A calibration: every point that is not in its journal yet, each kept at once, and a profile at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pagesim.costs.profiles import Profile, Shape
from pagesim.device.calibration.assemble import assemble
from pagesim.device.calibration.points import Point, grid_for
from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import OK, SCHEMA
from pagesim.kernels.bench.store import RowStore
from pagesim.kernels.machine import describe_machine, digest, identity
from pagesim.kernels.requirements import require_device
from pagesim.models import ModelSpec
from pagesim.models import model as find_model

ProgressCallback = Callable[[int, int, str], None]
"""Called with (points over, points in all, the point that comes next)."""

TURNS = 3
"""On a CPU every point is measured so often, once in each of several rounds over all of them."""

KV_DTYPES = ("fp16", "bf16")


@dataclass(frozen=True)
class Calibration:
    """What a calibration came to.

    Attributes:
        profile: of the measurements.
        measured: points that were measured now.
        stored: points that an earlier call had measured.
    """

    profile: Profile
    measured: int
    stored: int


def calibrate(
    model: str,
    *,
    device: str,
    name: str,
    tp: int = 1,
    quick: bool = False,
    block_sizes: Sequence[int] = (16,),
    kv_dtype: str = "fp16",
    cuda_graphs: bool = False,
    swap: str = "gather",
    seconds: float | None = None,
    seed: int = 0,
    journal: Path | None = None,
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Measure what iterations of a model cost on this machine, part by part, and fit a profile to it.

    Args:
        model: a model's name, or the path of a Hugging Face ``config.json``.
        device: ``cpu`` or ``cuda``.
        name: of the profile.
        tp: tensor parallel degree; 1, one device is measured.
        quick: fewer points, each for a shorter time.
        block_sizes: tokens a block, powers of two to 256.
        kv_dtype: of weights and cache on a GPU, ``fp16`` or ``bf16``; on a CPU all is fp32.
        cuda_graphs: whether iterations that only decode are CUDA graphs, as in a live run.
        swap: how blocks are swapped, a name of ``pagesim.kernels.swap.STRATEGIES``.
        seconds: time for each point after it is prepared.
        seed: of weights, tokens and block tables.
        journal: folder in which every finished point is kept at once, made if it is not there; a point that
            it holds for the same model, machine, versions and code is not measured again.
        progress: called after each point with how many are over, of how many, and the next.

    Raises:
        PagesimError: an option is off, torch or the device is missing, there is too little memory, or a point
            left the GPU unusable, and then the same call in a new process goes on behind it.
    """
    spec = find_model(model)
    _check(spec, device, tp, block_sizes, kv_dtype, cuda_graphs, swap, seconds)
    import torch

    from pagesim.device.live.preflight import dtype_on

    dtype, dtype_name = dtype_on(device, kv_dtype), "fp32" if device == "cpu" else kv_dtype
    on_gpu = device == "cuda"
    grid = grid_for(device, quick=quick)
    points = list(grid.points(tuple(block_sizes), longest=spec.max_model_len, on_gpu=on_gpu))
    if seconds is None:
        seconds = (0.05 if quick else 0.15) if on_gpu else (0.02 if quick else 0.05)
    _check_memory(spec, dtype.itemsize, device)
    machine = describe_machine(device)
    how = {
        "device": device,
        "dtype": dtype_name,
        "attention": "paged",
        "cuda_graphs": cuda_graphs,
        "swap": swap,
    }
    # The device is set up only if something is left to do.
    bench: Any = None
    now = 0
    rows: dict[Point, list[dict[str, Any]]] = {point: [] for point in points}
    # A CPU is shared: what disturbs it for a second disturbs one turn of a point, and not their median.
    turns = [(turn, point) for turn in range(1 if on_gpu else TURNS) for point in points]
    setting = [SCHEMA, identity(machine), _source(), Shape.of(spec).model_dump(), kv_dtype, how, seed]
    with RowStore(journal) as store:
        for over, (turn, point) in enumerate(turns):
            key = digest([*setting, turn, *point])
            if key not in store:
                if progress:
                    progress(over, len(turns), str(point))
                if bench is None:
                    from pagesim.device.calibration.bench import Bench

                    bench = Bench(
                        model,
                        spec,
                        device=torch.device(device),
                        dtype=dtype,
                        cuda_graphs=cuda_graphs,
                        swap=swap,
                        budget_s=seconds,
                        steps=7 if quick and not on_gpu else 15,
                        most_tokens=max(each.tokens for each in points),
                        most_blocks=max(grid.blocks),
                        block_size=block_sizes[0],
                        seed=seed,
                    )
                came = bench.measure(point)
                store.add({"schema": SCHEMA, "key": key, "turn": turn, "point": list(point), **came})
                now += 1
                if "lost" in store[key]:
                    raise PagesimError(
                        f"{point}: left the GPU unusable ({store[key]['lost']}); "
                        "it is recorded, run the same again to go on"
                    )
            rows[point].append(store[key])
    if progress:
        progress(len(turns), len(turns), "")
    profile = assemble(
        {point: _combined(each) for point, each in rows.items()},
        name=name,
        spec=spec,
        dtype=dtype_name,
        kv_dtype=kv_dtype,
        machine=machine,
        how=how,
    )
    return Calibration(profile, now, len(turns) - now)


def _combined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a point with the median of what its turns took; a failed one if all failed."""
    good = [row for row in rows if row["status"] == OK]
    if not good:
        return rows[0]
    # Contexts are the same in every turn: the batches are.
    return {**good[0], "seconds": median(row["seconds"] for row in good)}


def _check(
    spec: ModelSpec,
    device: str,
    tp: int,
    block_sizes: Sequence[int],
    kv_dtype: str,
    cuda_graphs: bool,
    swap: str,
    seconds: float | None,
) -> None:
    if tp != 1:
        raise PagesimError(f"tp is {tp}; pagesim calibrate measures one device, so it must be 1")
    if kv_dtype not in KV_DTYPES:
        raise PagesimError(f"kv_dtype is {kv_dtype!r}; it must be one of {', '.join(KV_DTYPES)}")
    if seconds is not None and not 0 < seconds <= 60:
        raise PagesimError(f"seconds is {seconds}; it must be above 0 and at most 60, for each point")
    if not block_sizes or len(set(block_sizes)) < len(block_sizes):
        raise PagesimError("block_sizes must be distinct, and at least one")
    require_device(device)
    from pagesim.device.live.model import check_model
    from pagesim.device.live.preflight import check_block_size, check_options
    from pagesim.setup.presets import POLICIES
    from pagesim.setup.system import System, checked

    for block_size in block_sizes:
        check_block_size(block_size)
    check_options(
        checked(System, {}),
        spec,
        POLICIES["vllm-sosp"],
        device=device,
        attention="paged",
        cuda_graphs=cuda_graphs,
        swap=swap,
    )
    check_model(spec, spec.max_model_len)


def _check_memory(spec: ModelSpec, itemsize: int, device: str) -> None:
    import torch

    from pagesim.device.live.preflight import available_bytes
    from pagesim.hardware.gpus import GIB

    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes()
    weights = spec.parameters * itemsize
    if weights >= 0.9 * free:
        raise PagesimError(
            f"model {spec.name} takes {weights / GIB:.1f} GiB of weights; {free / GIB:.1f} GiB are free on "
            f"device {device}: choose a smaller model"
        )


def _source() -> str:
    """Return a fingerprint of the code that is measured beside the kernels, so that a change is seen."""
    room = Path(__file__).parents[1]
    seen = hashlib.sha256()
    for folder in ("live", "calibration"):
        for file in sorted((room / folder).glob("*.py")):
            if file.name != "assemble.py":  # what is made of the rows changes none of them
                seen.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return seen.hexdigest()[:12]
