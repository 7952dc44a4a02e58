"""A bad trace ends in one sentence and exit code 2, and leaves nothing half-written."""

from __future__ import annotations

import pytest


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


def test_a_name_longer_than_any_file_is_refused(refused):
    assert "cannot be read (File name too long)" in refused("run", "--trace", "x" * 5000)


def test_a_folder_is_no_trace(refused_trace, tmp_path):
    assert "is not a regular file" in refused_trace(tmp_path)


BAD = "a,0,5,5\nb,0,-5,5\nc,1,5,5\n"
"""What is bad in other ways stands in `tests/workloads/test_bad_input.py`."""


def test_a_bad_row_is_named_with_field_value_and_bound(refused_trace, trace_file):
    sentence = refused_trace(trace_file(BAD))
    said = "row 2 (line 3): prompt_tokens is '-5'; it must be a whole number from 1 to 10000000"
    assert sentence == said


def test_a_bad_row_can_be_skipped_and_is_counted(succeeds, trace_file):
    outcome = succeeds("run", "--trace", trace_file(BAD), "--on-bad-row", "skip", "--json")
    assert outcome.json["requests"]["finished"] == 2
    assert "note: skipped 1 of 3 rows: first: row 2 (line 3): " in outcome.err


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
