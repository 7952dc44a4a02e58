"""A bad trace ends in one sentence and exit code 2, and leaves nothing half-written."""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.workloads import save
from pagesim.workloads.trace import Trace


@pytest.fixture
def refused_trace(refused, tmp_path):
    """Return a function that replays a file that is refused, and returns the sentence after its name."""

    def run(file, *flags):
        before = sorted(tmp_path.rglob("*"))
        for policies in ((), ("--policies", "orca-max,vllm-sosp")):
            sentence = refused("run", *policies, "--trace", file, *flags, "--out", tmp_path / "out", "--json")
            assert sentence.startswith(f"{file}: ")
        assert sorted(tmp_path.rglob("*")) == before
        return sentence.removeprefix(f"{file}: ")

    return run


def test_a_missing_file_is_named_with_the_workloads_that_there_are(refused_trace, tmp_path):
    sentence = refused_trace(tmp_path / "nosuch.csv")
    assert "there is no such file or workload" in sentence
    assert "sharegpt, alpaca, azure-conv" in sentence


def test_a_misspelt_workload_is_guessed(refused):
    assert "did you mean sharegpt?" in refused("run", "--trace", "sharegtp")


def test_a_name_longer_than_any_file_is_refused(refused):
    assert "cannot be read (File name too long)" in refused("run", "--trace", "x" * 5000)


def test_a_folder_is_no_trace(refused_trace, tmp_path):
    assert "is not a regular file" in refused_trace(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b"prompt_tokens,output_tokens\n", "has a header but no rows"),
        (b"[[1, 2], [3", "line 1: is not complete JSON"),
        (b"prompt_tokens,output_tokens\n5,\xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"colour,size\nred,5\n", "the format is not recognised: its columns are colour, size"),
        (b"\x00\x01\x02\x03", "the format is not recognised"),
        (b'{\n "colours": [\n[1, 2],\n[3, 4]\n ]\n}\n', "is not recognised: its columns are colours"),
    ],
)
def test_a_file_that_is_no_trace_says_why(content, said, refused_trace, trace_file):
    assert said in refused_trace(trace_file(content))


def test_a_truncated_parquet_file_says_so(refused_trace, tmp_path):
    save(Trace(np.zeros(9), np.full(9, 5), np.full(9, 5)), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    assert "damaged or truncated Parquet" in refused_trace(tmp_path / "t.parquet")


BAD_ROWS = {
    "length": ("b,0,-5,5", "prompt_tokens is '-5'", "it must be a whole number from 1 to 10000000"),
    "time": ("b,inf,5,5", "arrival_s is 'inf'", "it must be a finite time from 0"),
    "duplicate": ("a,3,5,5", "request_id is 'a', as in row 1 (line 2)", "ids must be distinct"),
    "short": ("b,0,5", "the row has 3 fields, the header has 4", ""),
}
"""One of each kind; `tests/workloads/test_bad_input.py` has them all."""


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_with_field_value_and_bound(case, refused_trace, trace_file):
    row, value, bound = BAD_ROWS[case]
    sentence = refused_trace(trace_file(f"a,0,5,5\n{row}\nc,1,5,5\n"))
    assert sentence.startswith("row 2 (line 3): ")
    assert value in sentence
    assert sentence.endswith(bound)


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_can_be_skipped_and_is_counted(case, succeeds, trace_file):
    trace = trace_file(f"a,0,5,5\n{BAD_ROWS[case][0]}\nc,1,5,5\n")
    outcome = succeeds("run", "--trace", trace, "--on-bad-row", "skip", "--json")
    assert outcome.json["requests"]["finished"] == 2
    assert "note: skipped 1 of 3 rows: first: row 2 (line 3): " in outcome.err


def test_if_every_row_is_bad_there_is_nothing_to_skip_to(refused_trace, trace_file):
    trace = trace_file("a,0,-5,5\nb,0,5,-5\n")
    assert "no row is good, 2 of 2 rows are bad" in refused_trace(trace, "--on-bad-row", "skip")


def test_rows_out_of_order_are_sorted_and_it_is_said(succeeds, trace_file):
    outcome = succeeds("run", "--trace", trace_file("a,5,5,5\nb,1,5,5\n"))
    assert "the rows were not in order of arrival and have been sorted" in outcome.err


@pytest.mark.parametrize("when", ["4600001", "1e12", "1e300"])
def test_an_arrival_beyond_the_longest_simulated_time_is_refused(when, refused, trace_file):
    sentence = refused("run", "--trace", trace_file(f"a,0,5,5\nb,{when},5,5\n"))
    assert sentence.startswith("request b: arrival_s is ")
    assert "at most 4.6e+06 s" in sentence


def test_beam_search_is_refused_by_v1_which_has_none(refused, trace_file):
    trace = trace_file(b"prompt_tokens,output_tokens,n,use_beam_search\n5,5,4,1\n")
    v1 = ("run", "--policy", "vllm-v1", "--trace")
    assert "beam_width is 4" in refused(*v1, trace)
    assert "beam_width is 3" in refused(*v1, "fixed:5,5", "--beam-width", "3")


def test_it_is_said_where_samples_of_different_lengths_end_together(succeeds, trace_file):
    trace = trace_file("a,0,5,5\nb,0,5,5;7\n")
    sentence = "samples of a request run as long as the longest"
    assert sentence in succeeds("run", "--trace", trace, "--policy", "vllm-sosp").err
    assert sentence not in succeeds("run", "--trace", trace, "--policy", "vllm-v0").err


@pytest.mark.parametrize("flag", ["n", "beam-width"])
def test_samples_that_have_lengths_of_their_own_cannot_be_given_others(flag, refused, trace_file):
    sentence = refused("run", "--trace", trace_file("a,0,5,5\nb,0,5,5;7\n"), f"--{flag}", "2")
    assert sentence.startswith(f"{flag.replace('-', '_')} is 2, but in the trace ")
    assert sentence.endswith(", as those of request b; leave it out")


def test_a_prefix_is_refused_where_the_trace_says_what_is_shared(refused, trace_file):
    trace = trace_file(b"prompt_tokens,output_tokens,hash_ids\n5,5,1\n")
    sentence = refused("run", "--trace", trace, "--shared-prefix", "80")
    assert "the trace says itself what its prompts share (hash_ids)" in sentence
