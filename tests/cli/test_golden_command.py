"""``pagesim golden`` says of each log whether it is equal, and where it first differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

LOGS = Path(__file__).resolve().parents[1] / "golden"
NAME = "v0_e3_n4_partial_block"

MANIFEST = f"""
[options]
cost = "affine:0.010,1e-5,1e-7"
max_model_len = 2048
max_num_batched_tokens = 2560

[log.{NAME}]
engine = "vLLM 0.2.7"
trace = "e3_n4_partial_block.csv"
policy = "vllm-v0"
options = {{ num_blocks = 24, cpu_blocks = 0 }}

[log.elsewhere]
engine = "vLLM 0.2.7"
trace = "e3_n4_partial_block.csv"
policy = "vllm-v0"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of one log, whose manifest names a second one."""
    for file in (f"{NAME}.steps.parquet", f"{NAME}.requests.parquet", "e3_n4_partial_block.csv"):
        shutil.copy(LOGS / file, tmp_path)
    (tmp_path / "golden.toml").write_text(MANIFEST, encoding="utf-8")
    return tmp_path


def test_a_line_a_log_says_what_is_equal_and_what_is_absent(succeeds, folder):
    first, second, last = [" ".join(line.split()) for line in succeeds("golden", folder).out.splitlines()]
    assert first.startswith(f"{NAME} vLLM 0.2.7 equal 6 iterations 1 requests 0.")
    assert first.endswith(" s stepping")
    assert " s fast-forward, " in first
    assert second == "elsewhere vLLM 0.2.7 absent: there is no elsewhere.steps.parquet"
    assert last == "1 equal, 0 different, 1 absent"


@pytest.mark.parametrize(
    ("flag", "way"), [("--no-fast-forward", "stepping"), ("--fast-forward", "fast-forward")]
)
def test_a_log_may_be_replayed_one_way_only(succeeds, folder, flag, way):
    line = succeeds("golden", folder, "--only", NAME, flag).out.splitlines()[0]
    assert line.count(" s ") == 1
    assert line.endswith(f"s {way}")


def test_where_a_log_differs_is_printed_and_the_exit_code_is_1(cli, folder):
    file = folder / f"{NAME}.steps.parquet"
    log = pd.read_parquet(file)
    log.loc[3, "blocks_copied"] += 2
    log.to_parquet(file)
    outcome = cli("golden", folder, "--only", NAME)
    assert outcome.code == 1
    assert "fast-forward: steps, row 3, blocks_copied: 0, the log has 2\n" in outcome.out
    assert " > 3 " in outcome.out
    assert " 0 ≠ 2 " in outcome.out
    assert outcome.out.endswith("0 equal, 1 different, 0 absent\n")


def test_a_name_that_is_no_logs_is_refused(cli, folder):
    outcome = cli("golden", folder, "--only", "v9")
    assert outcome.code == 2
    assert outcome.err == f"pagesim: only is 'v9'; the logs of {folder} are {NAME}, elsewhere\n"
