"""What fuzzing found, file by file, so that none of it comes back."""

from __future__ import annotations

import io
import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from targets import targets
from trial import DATA, REFUSED, read

BY_NAME = {target.name: target for target in targets()}


def parquet(**columns) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def changed(name, file, **values) -> bytes:
    return json.dumps({**json.loads(BY_NAME[name].files[file]), **values}).encode()


DEEP = b'{"a":' * 100_000
LLAMA, DEEPSEEK = "config.json: LLAMA_3_8B", "config.json: DEEPSEEK_V3"
STORE, RUN = "store of a sweep", f"runs/{'a' * 32}.json"
ALWAYS = np.zeros(30_000_000, np.int8)
LONG = pa.DictionaryArray.from_arrays(pa.array(ALWAYS[:3000]), pa.array(["x" * 1_000_000]))
LISTS = pa.FixedSizeListArray.from_arrays(pa.array(ALWAYS), 1000)
SAME = pa.DictionaryArray.from_arrays(pa.array(ALWAYS), pa.array([5], pa.int64()))
LINEAR = BY_NAME["vidur"].files["linear.csv"].decode()
ATTENTION = BY_NAME["vidur"].files["attention.csv"].decode()
PROFILE = json.loads(BY_NAME["profile: measured"].files["p.json"])

# A file that takes long to make is made by the test that reads it, and not whenever tests are collected.
FOUND = {
    "a config nested too deeply": (LLAMA, "config.json", DEEP, "nested too deeply"),
    "a model with a billion heads": (
        LLAMA,
        "config.json",
        changed(LLAMA, "config.json", num_attention_heads=10**9, num_key_value_heads=10**9),
        "at most 65536",
    ),
    "a list for a number, endless": (
        LLAMA,
        "config.json",
        changed(LLAMA, "config.json", vocab_size=[7] * 9000),
        "vocab_size is [7, 7",
    ),
    "more experts a token than there are": (
        DEEPSEEK,
        "config.json",
        changed(DEEPSEEK, "config.json", num_experts_per_tok=300),
        "experts_per_token is 300",
    ),
    "a scenario nested too deeply": ("scenario: Scenario", "s.toml", b"rate = " + b"[" * 9000, "too deeply"),
    "a number of too many digits": ("scenario: Scenario", "s.toml", b"seed = " + b"9" * 5000, "is no TOML"),
    "the name of a model that no file system holds": (
        "scenario: Scenario",
        "s.toml",
        b'model = "' + b"x" * 5000 + b'"',
        "no model is named",
    ),
    "a trace of blanks in quotes": ("trace: vidur", "trace.csv", b'""\n""\n', "the file is empty"),
    "a bomb of rows": (
        "trace: pagesim-parquet",
        "trace.parquet",
        partial(parquet, **dict.fromkeys(("prompt_tokens", "output_tokens", "n", "beam_width"), SAME)),
        "claims 30000000 rows",
    ),
    "a bomb of texts": (
        "trace: pagesim-parquet",
        "trace.parquet",
        partial(parquet, prompt_tokens=[1] * 3000, output_tokens=[1] * 3000, request_id=LONG),
        "claims 3000 rows and 2861 MiB or more",
    ),
    "a bomb of lists": (
        "trace: pagesim-parquet",
        "trace.parquet",
        partial(parquet, prompt_tokens=[1] * 30_000, output_tokens=LISTS),
        "MiB or more",
    ),
    "dates beyond the calendar": (
        "trace: pagesim-parquet",
        "trace.parquet",
        partial(parquet, prompt_tokens=[1], output_tokens=pa.array([2**62], pa.duration("s"))),
        "holds what Python cannot hold",
    ),
    "a stored run without its summary": (STORE, RUN, b'{"status": "done"}', "the run is repeated"),
    "a stored run nested too deeply": (STORE, RUN, DEEP, "the run is repeated"),
    "rows of a bench nested too deeply": ("bench rows", "rows.jsonl", DEEP + b"\n", "is no JSON"),
    "an operator's time that is a word": (
        "vidur",
        "linear.csv",
        LINEAR.replace("0.011", "soon", 1).encode(),
        "holds 'soon'; it must hold numbers",
    ),
    "a flag that is neither": (
        "vidur",
        "attention.csv",
        ATTENTION.replace("False", "perhaps", 1).encode(),
        "is_prefill holds 'perhaps'",
    ),
    "a file of operators without one": (
        "vidur",
        "attention.csv",
        ATTENTION.replace("time_stats.attn_decode.median", "x", 1).encode(),
        "has no column time_stats.attn_decode.median",
    ),
    "a sample of a block size that was not fitted": (
        "profile: measured",
        "p.json",
        json.dumps({**PROFILE, "samples": [["decode", 64, 1, 1, 0.1]]}).encode(),
        "the profile has no such term",
    ),
    "a term from nowhere": (
        "profile: measured",
        "p.json",
        json.dumps({**PROFILE, "origins": {"linear": "measured"}}).encode(),
        "origins does not say",
    ),
    "a bound of lengths beyond all integers": (
        "length model",
        "m.json",
        changed("length model", "m.json", total_below=10**30),
        "total_below is 10000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_what_fuzzing_found_is_refused_in_a_sentence(case, tmp_path):
    name, file, data, said = FOUND[case]
    target = BY_NAME[name]
    target.put(tmp_path, {file: data if isinstance(data, bytes) else data()})
    outcome = read(target, tmp_path)
    assert outcome.kind == REFUSED, outcome.detail
    assert said in outcome.detail


def test_the_least_model_gets_no_more_blocks_than_memory_holds(tmp_path):
    # A token of a few bytes would fit a billion times.
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    (tmp_path / "config.json").write_bytes(changed(LLAMA, "config.json", **small, vocab_size=8))
    from pagesim.errors import PagesimError
    from pagesim.setup.prepare import check
    from pagesim.setup.system import System

    with pytest.raises(PagesimError, match=r"num_blocks of .* comes to .* the bound is"):
        check(System(model=str(tmp_path / "config.json")))


def test_a_note_says_how_many_rows_of_operators_are_left_out(tmp_path):
    from pagesim.costs.profiles import import_vidur
    from pagesim.hardware import gpu
    from pagesim.models import model

    (tmp_path / "linear.csv").write_text(LINEAR)
    head, first, rest = ATTENTION.split("\n", 2)
    place = head.split(",").index("time_stats.attn_decode.median")
    cells = first.split(",")
    cells[place] = ""
    (tmp_path / "attention.csv").write_text("\n".join([head, ",".join(cells), rest]))
    files = (tmp_path / "linear.csv", tmp_path / "attention.csv")
    profile = import_vidur(*files, model=model("llama-2-7b"), gpu=gpu("a100-80gb"), name="x", source="y")
    assert "1 of 22 rows of attention.csv hold no attention that took a time" in profile.notes


def test_a_good_file_of_many_like_rows_is_no_bomb(tmp_path):
    target = BY_NAME["trace: pagesim-parquet"]
    column = pa.array(np.full(300_000, 5))
    (tmp_path / "trace.parquet").write_bytes(parquet(prompt_tokens=column, output_tokens=column))
    assert (tmp_path / "trace.parquet").stat().st_size < 10_000
    outcome = read(target, tmp_path)
    assert outcome.kind == DATA, outcome.detail


def test_rows_that_do_not_fit_into_free_memory_are_refused_in_a_sentence(monkeypatch, tmp_path):
    from pagesim.errors import PagesimError
    from pagesim.workloads import make_trace

    def full(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pagesim.workloads.source._arrow_column", full)
    file = tmp_path / "trace.parquet"
    file.write_bytes(parquet(prompt_tokens=[1, 2], output_tokens=[1, 2]))
    with pytest.raises(PagesimError, match="its 2 rows need more memory than is free"):
        make_trace(str(file))
