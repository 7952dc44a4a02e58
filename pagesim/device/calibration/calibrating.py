"""Calibration: time the operators that a system needs, and fit a profile to them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pagesim.costs.profiles import Profile, Shape
from pagesim.device.calibration.assemble import Timed, assemble
from pagesim.device.calibration.points import Measurement, grid_for, measurements
from pagesim.device.calibration.rank import rank_of
from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import OK, Point, Row
from pagesim.kernels.bench.run import ProgressCallback, run_points
from pagesim.kernels.machine import available_bytes, digest
from pagesim.kernels.requirements import require_device
from pagesim.models import ModelSpec
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System, checked

TURNS = 3
"""Number of rounds over all points on a CPU, each of which measures every point once."""

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        profile: profile of the measurements.
        measured: number of points measured in this call.
        stored: number of points taken from an earlier call.
    """

    profile: Profile
    measured: int
    stored: int


def calibrate(
    system: System | str,
    *,
    device: str,
    name: str,
    quick: bool = False,
    block_sizes: Sequence[int] = (),
    cuda_graphs: bool = False,
    swap: str = "gather",
    seconds: float | None = None,
    journal: Path | None = None,
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Measure a system's operators on this machine and fit a profile of its iterations.

    Args:
        system: deployment to measure, of which ``model``, ``weight_dtype``, ``tensor_parallel_size``,
            ``kv_cache_dtype``, ``speculative_tokens`` and ``seed`` are used, and the datasheet of ``gpu`` if
            this machine's is unknown; or a model's name, or the path of its config. One GPU of a tensor
            parallel group is measured. On a CPU everything is fp32, except an fp8 cache.
        device: ``cpu`` or ``cuda``.
        name: name of the profile.
        quick: whether to measure fewer points, each for a shorter time.
        block_sizes: tokens per block, powers of two; by default the system's, or 16.
        cuda_graphs: whether decode-only iterations run as CUDA graphs, as in a live run.
        swap: swap strategy, a name of ``pagesim.kernels.swap.STRATEGIES``.
        seconds: time to measure each point once it is prepared.
        journal: folder in which each point is saved when finished, created if missing. Points saved for the
            same system, machine, versions and code are not measured again.
        progress: called after each point with the number of finished points, their total, and the next.

    Raises:
        PagesimError: an option is invalid, pagesim lacks a kernel, torch or the device is missing, memory is
            too small, or a point left the GPU unusable; then the same call in a new process continues after
            that point.
    """
    require_device(device)
    from pagesim.device.calibration.cases import ModelCases
    from pagesim.device.live.preflight import check_block_size

    if isinstance(system, str):
        system = checked(System, {"model": system})
    config, on_gpu = EngineConfig(system), device == "cuda"
    rank = rank_of(config, device=device, cuda_graphs=cuda_graphs, swap=swap)
    block_sizes = tuple(block_sizes) or (system.block_size or BLOCK_SIZE,)
    if len(set(block_sizes)) < len(block_sizes):
        raise PagesimError("block_sizes must be distinct")
    for block_size in block_sizes:
        check_block_size(block_size)
    if len(block_sizes) > 1 and any(each.span for each in rank.attention):
        raise PagesimError(
            f"block_sizes has {len(block_sizes)}; a profile knows attention within a window at one of them"
        )
    if rank.is_built:
        _check_memory(rank.spec, 4 if rank.dtype == "fp32" else 2, device)
    grid = grid_for(device, quick=quick)
    if seconds is None:
        seconds = (0.05 if quick else 0.15) if on_gpu else (0.01 if quick else 0.03)
    how = {"device": device, "dtype": rank.dtype, "cuda_graphs": cuda_graphs, "swap": swap}
    setting = digest([_source(), Shape.of(rank.spec).model_dump(), how, system.seed])
    wanted = list(measurements(rank, grid, block_sizes, model=setting, on_gpu=on_gpu))
    # A CPU is shared: a short disturbance affects one turn of a point, but not the median of its turns.
    turns: list[dict[str, int]] = [{}] if on_gpu else [{"number": turn} for turn in range(TURNS)]
    points = list(
        {
            digest(point.row()): point for turn in turns for each in wanted for point in _in_turn(each, turn)
        }.values()
    )
    cases = ModelCases(
        rank,
        name=system.model,
        device=device,
        batches=grid.iterations,
        steps=7 if quick and not on_gpu else 15,
        seed=system.seed,
    )
    outcome = run_points(
        points,
        device,
        journal,
        seconds=seconds,
        seed=system.seed,
        progress=progress,
        prepares=cases.prepares(),
    )
    rows = {digest(point.row()): row for point, row in zip(points, outcome.rows, strict=True)}
    timed = []
    for each in wanted:
        of_turns = [[rows[digest(point.row())] for point in _in_turn(each, turn)] for turn in turns]
        timed.append((each, _timed(each, of_turns)))
    profile = assemble(
        timed, name=name, rank=rank, config=config, machine=outcome.rows[0]["machine"], how=how
    )
    return Calibration(profile, outcome.measured, len(points) - outcome.measured)


def _in_turn(each: Measurement, turn: Mapping[str, int]) -> list[Point]:
    """Return a measurement's benchmark points, labelled with the turn."""
    return [Point(point.bench, point.op, {**point.parameters, **turn}) for point, _ in each.points]


def _timed(each: Measurement, turns: Sequence[Sequence[Row]]) -> Timed:
    """Return a measurement's outcome: the median over turns of the sum over its points."""
    bad = [next(row for row in turn if row["status"] != OK) for turn in turns if not _all_good(turn)]
    sums = [
        sum(count * row["median_s"] for (_, count), row in zip(each.points, turn, strict=True))
        for turn in turns
        if _all_good(turn)
    ]
    if not sums:
        return Timed(bad[0]["status"], bad[0]["error"])
    # Contexts are the same in every turn, as the batches are.
    return Timed(OK, None, median(sums), turns[0][0]["decode_context"] or 0)


def _all_good(turn: Sequence[Row]) -> bool:
    return all(row["status"] == OK for row in turn)


def _check_memory(spec: ModelSpec, itemsize: int, device: str) -> None:
    import torch

    from pagesim.hardware.gpus import GIB

    free = torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes()
    weights = spec.parameters * itemsize
    if weights >= 0.9 * free:
        raise PagesimError(
            f"model {spec.name} takes {weights / GIB:.1f} GiB of weights; {free / GIB:.1f} GiB are free on "
            f"device {device}: choose a smaller model"
        )


def _source() -> str:
    """Return a fingerprint of the measured code outside the kernels, to detect changes."""
    room = Path(__file__).parents[1]
    seen = hashlib.sha256()
    for folder in ("live", "calibration"):
        for file in sorted((room / folder).glob("*.py")):
            if file.name != "assemble.py":  # it only processes rows
                seen.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return seen.hexdigest()[:12]
