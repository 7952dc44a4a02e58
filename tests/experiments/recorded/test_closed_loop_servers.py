"""What the scripts of published runs say of their servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.recorded.closed_loop_servers import TableRow, settings, spread
from pagesim.experiments.recorded.closed_loop_table import read
from pagesim.experiments.recorded.simulate import system_of

HEAD = "model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note\n"


def table_row(model: str, dtype: str, release: str, isl: int, tp: int, ep: int) -> TableRow:
    """Return a row of 64 clients on B200s."""
    times = {"ttft_ms": 1.0, "tpot_ms": 1.0}
    lengths = {"isl": isl, "osl": 100, "concurrency": 64}
    named = {"model": model, "system": "b200_sxm", "dtype": dtype, "release": release}
    return TableRow.model_validate({**named, **lengths, "tp": tp, "ep": ep, **times})


def changed(row: TableRow, **fields: object) -> TableRow:
    """Return a row with other fields."""
    return row.model_copy(update=fields)


MINIMAX = table_row("MiniMax-M2.5", "fp8", "0.19.0", 8192, 2, 1)


def test_lengths_are_drawn_as_whoever_measured_drew_them() -> None:
    assert spread("gpt-oss-120b") == spread("Llama-3.1-70B") == (0.8, 1.0)
    assert spread("Qwen3-32B") == (0.8, 1.2)
    assert spread("Mixtral-8x7B") == (1.0, 1.0), "lengths of which nothing is known are alike"


def test_the_cache_of_minimax_is_fp8_from_the_release_on_at_which_the_script_asks_for_it() -> None:
    tuned = settings(MINIMAX)
    assert tuned["kv_cache_dtype"] == "fp8"
    assert tuned["max_num_batched_tokens"] == 2 * MINIMAX.isl
    older = settings(changed(MINIMAX, release="0.17.0"))
    assert "kv_cache_dtype" not in older
    assert (older["expert_parallel_size"], older["moe_backend"]) == (2, "triton")
    hopper = settings(changed(MINIMAX, system="h200_sxm", release="0.18.0", tp=8))
    assert hopper["expert_parallel_size"] == 8
    assert "moe_backend" not in hopper


def test_a_checkpoint_in_nvfp4_asks_for_a_cache_in_fp8_whatever_the_script_says() -> None:
    nightly = settings(changed(MINIMAX, dtype="nvfp4", release=""))
    assert nightly["kv_cache_dtype"] == "fp8"
    assert "max_num_batched_tokens" not in nightly


def test_experts_of_gpt_oss_compute_in_eight_bits_on_blackwell_alone() -> None:
    row = table_row("gpt-oss-120b", "mxfp4 experts", "0.15.1", 1024, 1, 1)
    assert settings(row)["weight_dtype"] == "mxfp4_mxfp8"
    assert settings(row)["kv_cache_dtype"] == "fp8"
    assert "kv_cache_dtype" not in settings(changed(row, release=""))
    assert "weight_dtype" not in settings(changed(row, system="h100_sxm"))


def test_the_first_script_of_kimi_divides_experts_as_all_else() -> None:
    row = table_row("Kimi-K2.5", "nvfp4", "0.17.0", 1024, 4, 4)
    assert settings(row)["expert_parallel_size"] == 1
    assert "max_num_batched_tokens" not in settings(row)
    assert settings(changed(row, ep=1))["max_num_batched_tokens"] == 2048


def test_a_batch_that_no_column_says_is_asked_for_and_not_guessed(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    row = "openai/gpt-oss-120b,h100_sxm,mxfp4 experts,0.11.2,1024,1024,{},2,1,90,9,\n"
    file.write_text(HEAD + row.format(512) + row.format(64))
    unknown, known = read(file)
    assert known.server["max_num_seqs"] == 64
    with pytest.raises(PagesimError, match="does not say max_num_seqs"):
        system_of(unknown, {"model": "gpt-oss-120b", "gpu": "h100"})
