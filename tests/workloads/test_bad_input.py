"""Bad input ends in one sentence that names the file, the row, the field, the value and the bound."""

import json
import os

import numpy as np
import pytest

from pagesim.errors import PagesimError, TraceError
from pagesim.workloads import load, save
from pagesim.workloads.trace import Trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def refused(path, content, **options) -> str:
    """Write a file, expect it to be refused, and return the sentence without the file's name."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraceError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace"


def test_a_missing_file_is_named(path):
    with pytest.raises(TraceError, match="trace: there is no such file"):
        load(path)


def test_a_folder_is_no_trace(tmp_path):
    with pytest.raises(TraceError, match="is not a regular file"):
        load(tmp_path)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(path):
    os.mkfifo(path)
    with pytest.raises(TraceError, match="is a pipe, and in 5 s nothing has begun to write to it"):
        load(path)


@pytest.mark.parametrize("content", ["", " \n \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_called_empty(path, content):
    assert refused(path, content) == "the file is empty"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (HEADER, "the file has a header but no rows"),
        ("[]", "the file holds an empty list, no request"),
        (b"prompt_tokens,output_tokens\n5,\xff\n", "line 2: byte 0xff is not UTF-8 text"),
        (HEADER.encode("utf-16"), "line 1: byte 0xff is not UTF-8 text"),
        ("[[1, 2], [3", "line 1: is not complete JSON"),
        ("[" * 100_000, "is not JSON that can be read (it is nested too deeply)"),
        ('{"prompt": ' * 50_000, "row 1 (line 1): is not a complete JSON object (it is nested too deeply)"),
        ("[" + "9" * 5000 + "]", "is not JSON that can be read"),
        ("[1, 2, 3]", "row 1: is 1, not an object or an [in, out] pair"),
        (b"PAR1" + bytes(100) + b"PAR1", "is a damaged or truncated Parquet file"),
        ('prompt_tokens,output_tokens\n"5,6\n7,8\n', "line 3: is not CSV"),
        ("prompt_tokens,prompt_tokens,output_tokens\n1,2,3\n", "line 1: column 'prompt_tokens' occurs twice"),
    ],
)
def test_a_damaged_file_is_refused(path, content, said):
    assert refused(path, content).startswith(said)


@pytest.mark.parametrize(
    "content",
    [
        "hello world\n",
        "a,b\n1,2\n",
        '"a\nb",\x1b[31m\n1,2\n',
        '{"a": 1}',
        '[{"text": "x"}]',
        b"\x00\x01\x02\x03",
        '{\n "colours": [\n[1, 2],\n[3, 4]\n ]\n}\n',
    ],
)
def test_an_unknown_format_is_refused_with_the_formats_that_are_known(path, content):
    message = refused(path, content)
    assert message.startswith("the format is not recognised")
    assert "sharegpt" in message
    assert "prompt_tokens" in message


def test_a_truncated_parquet_file_is_refused(path):
    trace = Trace(np.zeros(1), np.array([1]), np.array([2]))
    save(trace, path.with_suffix(".parquet"))
    whole = path.with_suffix(".parquet").read_bytes()
    assert refused(path, whole[:-9]).startswith("is a damaged or truncated Parquet file")


BOUND = "it must be a whole number from 1 to 10000000"


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0", "is '0'"),
        ("-5", "is '-5'"),
        ("2.5", "is '2.5'"),
        ("nan", "is 'nan'"),
        ("inf", "is 'inf'"),
        ("1e9", "is '1e9'"),
        ("10000001", "is '10000001'"),
        ("9" * 400, "is '99999"),
        ("1_000", "is '1_000'"),
        (f"{'1' * 100_000}x", "is '1111"),
        ("abc", "is 'abc'"),
        ("", "is missing"),
    ],
)
def test_a_length_out_of_bounds_names_row_line_field_value_and_bound(path, column, value, shown):
    cells = ["1.5", "10", "20"]
    cells[column] = value
    message = refused(path, HEADER + "1.0,10,20\n\n" + ",".join(cells) + "\n")
    name = HEADER.strip().split(",")[column]
    assert message.startswith(f"row 2 (line 4): {name} {shown}")
    assert message.endswith(BOUND)


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, float("nan"), float("inf"), 10**8, 10**400, None, True, [3], "x"]
)
def test_a_length_out_of_bounds_is_found_in_json_too(path, value):
    message = refused(path, json.dumps([[5, 6], [7, value]]))
    assert message.startswith("row 2: out is ")
    assert message.endswith(BOUND)


@pytest.mark.parametrize("value", ["-1", "inf", "nan", "1e999", "soon", ""])
def test_a_time_that_is_negative_or_infinite_is_refused(path, value):
    message = refused(path, HEADER + f"0,10,20\n{value},10,20\n")
    assert message.startswith("row 2 (line 3): arrival_s is ")
    assert message.endswith("it must be a finite time from 0")


@pytest.mark.parametrize("value", ["2023-13-01 00:00:00", "2023-11-16", "5", "9999-01-01 00:00:00"])
def test_a_date_that_is_none_is_refused(path, value):
    message = refused(path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{value},1,1\n")
    assert message.startswith(f"row 1 (line 2): timestamp is '{value}'; it must be a date and time such as")


def test_ids_are_distinct(path):
    message = refused(path, "request_id,prompt_tokens,output_tokens\na,1,2\nb,1,2\na,1,2\n")
    assert message == "row 3 (line 4): request_id is 'a', as in row 1 (line 2); ids must be distinct"


def test_a_row_of_another_width_is_refused(path):
    message = refused(path, HEADER + "0,1,2\n0,1\n")
    assert message == "row 2 (line 3): the row has 2 fields, the header has 3"


def test_a_truncated_line_of_json_is_a_bad_row(path):
    good = '{"timestamp": 0, "input_length": 5, "output_length": 6}\n'
    assert refused(path, good + good[:20]).startswith("row 2 (line 2): is not a complete JSON object")
    path.write_text(good + good[:20])
    assert len(load(path, on_bad_row="skip")) == 1


@pytest.mark.parametrize(
    ("column", "value", "bound"),
    [
        ("n", "0", "a whole number from 1 to 1024"),
        ("n", "2000", "a whole number from 1 to 1024"),
        ("beam_width", "-1", "a whole number from 1 to 1024"),
        ("use_beam_search", "maybe", "true or false, 1 or 0"),
        ("hash_ids", "1;x", "a list of whole numbers"),
        ("abort_s", "-3", "a time at or after arrival_s, or nothing for never"),
        ("prefix_tokens", "-1", "a whole number from 0 to 10000000"),
        ("prefix_tokens", "0.5", "a whole number from 0 to 10000000"),
    ],
)
def test_an_optional_column_is_checked_too(path, column, value, bound):
    message = refused(path, f"prompt_tokens,output_tokens,{column}\n1,2,{value}\n")
    assert message == f"row 1 (line 2): {column} is '{value}'; it must be {bound}"


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        (
            "n",
            "5,6;0,2",
            "output_tokens is '6;0'; it must be a whole number from 1 to 10000000, or one for each",
        ),
        (
            "n",
            "5,6;,2",
            "output_tokens is '6;'; it must be a whole number from 1 to 10000000, or one for each",
        ),
        ("n", "5,6;2.5,2", "output_tokens is '6;2.5'; it must be a whole number from 1 to 10000000, or one"),
        ("n", "5,6;inf,2", "output_tokens is '6;inf'; it must be a whole number from 1 to 10000000, or one"),
        (
            "n",
            "5,6;7;8,2",
            "output_tokens is '6;7;8', 3 lengths, and n is 2; it must be one length, or one for",
        ),
        (
            "n",
            "5,6;6;6,2",
            "output_tokens is '6;6;6', 3 lengths, and n is 2; it must be one length, or one for",
        ),
        ("beam_width", "5,6;7,2", "output_tokens is '6;7', and beam_width is 2; all beams are equally long"),
        ("use_beam_search", "5,6;7,1", "output_tokens is '6;7', and beam_width is 2; all beams are equally"),
        ("prefix_tokens", "5,6,9", "prefix_tokens is 9; it must be at most the prompt's 5"),
        (
            "hash_ids",
            "513,6,1;2;3",
            "hash_ids has 3 ids of 512 tokens each; a prompt of 513 tokens has at most 2",
        ),
        (
            "hash_ids,hash_block_size",
            "5,6,1,0",
            "hash_block_size is '0'; it must be a whole number from 1 to",
        ),
        (
            "hash_ids,hash_block_size",
            "5,6,1,1.5",
            "hash_block_size is '1.5'; it must be a whole number from 1",
        ),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(path, header, row, said):
    message = refused(path, f"prompt_tokens,output_tokens,{header}\n{row}\n")
    assert message.startswith(f"row 1 (line 2): {said}")


def test_more_lengths_than_a_request_can_have_samples_are_refused(path):
    message = refused(path, json.dumps([{"prompt_tokens": 1, "output_tokens": [2] * 1025}]))
    assert message.endswith(", 1025 lengths; it must be at most 1024")


def test_the_size_of_blocks_is_one_for_the_whole_file(path):
    content = "prompt_tokens,output_tokens,hash_ids,hash_block_size\n5,6,1,16\n5,6,1,32\n"
    message = refused(path, content)
    assert message == "row 2 (line 3): hash_block_size is '32'; it must be the same in every row, here 16"
    assert load(path, on_bad_row="skip").hash_block_size == 16


@pytest.mark.parametrize(
    "talk", [None, "text", [1], [{"from": "human"}], [{"from": "human", "value": 3}], {"from": "human"}]
)
def test_a_conversation_that_is_none_is_refused(path, talk):
    message = refused(path, json.dumps([{"conversations": talk}]))
    assert message.startswith("row 1: conversations is ")


def test_skipped_rows_are_counted_and_the_first_is_explained(path):
    path.write_text(HEADER + "0,10,20\n1,0,20\n2,10,20\n3,10\n-4,10,20\n")
    trace = load(path, on_bad_row="skip")
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    note = f"skipped 3 of 5 rows: first: row 2 (line 3): prompt_tokens is '0'; {BOUND}"
    assert trace.notes == (note,)


def test_skipping_every_row_is_an_error(path):
    message = refused(path, HEADER + "0,0,0\n0,1,-1\n", on_bad_row="skip")
    assert message.startswith("no row is good, 2 of 2 rows are bad; the first: row 1 (line 2): prompt_tokens")


def test_an_id_is_free_again_when_its_row_is_skipped(path):
    path.write_text("request_id,prompt_tokens,output_tokens\n1,0,2\n1,5,6\n1,7,8\n")
    trace = load(path, on_bad_row="skip")
    assert trace.prompt_tokens.tolist() == [5]
    assert trace.notes[0].startswith("skipped 2 of 3 rows")


@pytest.mark.parametrize(("option", "value"), [("turns", "second"), ("on_bad_row", "ignore")])
def test_an_unknown_option_is_refused(path, option, value):
    with pytest.raises(PagesimError, match=f"{option} is '{value}'; it must be "):
        load(path, **{option: value})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt_tokens": 5, "output_tokens": 5, "prompt_tokens": 6}\n', "row 1 (line 1): the key"),
        ('[{"prompt_tokens": 5, "output_tokens": 5, "prompt_tokens": 6}]', "the key 'prompt_tokens' occurs"),
        (
            '[{"prompt_tokens": 5, "output_tokens": 5, "Prompt_tokens": 6}]',
            "row 1: two of its keys differ in",
        ),
    ],
)
def test_a_key_that_occurs_twice_is_refused(text, said, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        load(file)
    assert said in str(caught.value)
