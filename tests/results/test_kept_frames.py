"""A table that grows: what does not fit into memory is in a temporary file, and no answer differs for it."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.results import kept_frames, plots
from pagesim.results.kept_frames import KeptFrames


def frames(*rows: int) -> list[pd.DataFrame]:
    """Return frames with so many rows, numbered through."""
    numbers = np.split(np.arange(sum(rows)), np.cumsum(rows)[:-1])
    return [pd.DataFrame({"row": part, "half": part / 2}) for part in numbers]


def kept(*rows: int) -> KeptFrames:
    table = KeptFrames()
    for frame in frames(*rows):
        table.add(frame)
    return table


@pytest.fixture(autouse=True)
def ten_rows_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_frames, "MOST_ROWS", 10)


ROWS = [(4,), (4, 6), (4, 7), (30, 1), (3, 8, 25, 2, 9), (11, 11)]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_a_table_is_its_frames_in_order(rows: tuple[int, ...], tmp_path: Path) -> None:
    whole = pd.concat(frames(*rows), ignore_index=True)
    table = kept(*rows)
    assert table.rows == len(whole)
    pd.testing.assert_frame_equal(table.frame(), whole)
    pd.testing.assert_frame_equal(table.frame(), whole, obj="asked again")
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(table)).frame(), whole)
    table.write(tmp_path / "table.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "table.parquet"), whole)
    assert table.last().to_list() == whole.iloc[-1].to_list()


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("most", [1, 2, 5, 1000])
def test_rows_that_are_left_are_equally_far_apart(rows: tuple[int, ...], most: int) -> None:
    whole = pd.concat(frames(*rows), ignore_index=True)
    shown = whole.iloc[:: max(1, len(whole) // most)]
    pd.testing.assert_frame_equal(kept(*rows).thinned(most), shown.reset_index(drop=True))


def test_no_more_rows_stay_in_memory_than_fit() -> None:
    table = KeptFrames()
    for frame in frames(*[3] * 40):
        table.add(frame)
        assert sum(map(len, table._frames)) <= 10


def test_a_full_disk_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**how: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(ps.PagesimError, match=r"cannot keep the 11 steps .* \(No space left .* TMPDIR"):
        kept(11)


def test_a_result_is_the_same_wherever_its_steps_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = ps.make_trace("fixed:20,30", arrivals="poisson", rate=20.0, num_requests=60)
    options = {"cost": "affine:0.01,1e-5,1e-7", "num_blocks": 100}
    in_file = ps.simulate(trace, "vllm-sosp", **options)
    monkeypatch.setattr(kept_frames, "MOST_ROWS", 1 << 16)
    in_memory = ps.simulate(trace, "vllm-sosp", **options)
    assert len(in_file.steps) > 50
    pd.testing.assert_frame_equal(in_file.steps, in_memory.steps)
    for name, result in (("file", in_file), ("memory", in_memory)):
        result.save(tmp_path / name)
        plots.save_run_figures(result, tmp_path / name)
    pictures = [(tmp_path / name / "memory.png").read_bytes() for name in ("file", "memory")]
    assert pictures[0] == pictures[1]
    pd.testing.assert_frame_equal(ps.load(tmp_path / "file").steps, ps.load(tmp_path / "memory").steps)
