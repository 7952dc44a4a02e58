"""Edges of reading a server's line: long words, many words, the shortest spellings, and bounds."""

from __future__ import annotations

import pytest
from serve_lines import refusal

import pagesim as ps
from pagesim.setup import serve_vllm
from pagesim.setup.serve import read_serve

LONG = "x" * 300
LAUNCH = "python -m sglang.launch_server --model-path llama-3.1-8b"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # Of a word that is quoted stand 80 characters, quotation mark and dots among them.
        (LONG, f"--serve is '{'x' * 76}...; it must begin with vllm serve"),
        (f"vllm serve opt-13b ${LONG}", f"--serve holds '${'x' * 75}..., which means something"),
        (f"vllm serve opt-13b --{LONG} 1", f"--serve: '--{'x' * 74}... is no flag of vllm serve 0.33.0"),
        (f"vllm serve opt-13b --enforce-eager={LONG}", f"takes no value, and has '{'x' * 76}..."),
        (f"{LAUNCH} {LONG}", f"--serve: '{'x' * 76}... belongs to no flag; take it out"),
        # Of one that is not quoted 80, of a flag with its values 120, of models 200.
        (f"vllm serve gpt-oss-20b --moe-backend {LONG}", f"--serve: --moe-backend {'x' * 80} would change"),
        (f"vllm serve opt-13b --config {LONG}", f"--serve: --config {'x' * 111} affects scheduling"),
        (f"vllm serve a/{LONG}", f"--serve: no model is named 'a/{'x' * 194}...; pagesim list models"),
        (f"vllm serve {LONG} opt-13b", f"--serve names {'x' * 194}; it must name one model"),
    ],
)
def test_a_long_word_is_cut_where_it_is_said(line: str, said: str) -> None:
    assert said in refusal(line)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["-O3"], [("optimization-level", ["3"])]),
        (["-ep"], [("enable-expert-parallel", [])]),
        (["--no-enable-expert-parallel"], [("enable-expert-parallel", ["false"])]),
        (["-sc.method", "ngram"], [("speculative-config", ["ngram"])]),
        (
            ["-sc.method", "ngram", "-sc.num_speculative_tokens=3"],
            [
                ("speculative-config", ["ngram"]),
                ("speculative-config", ["3"]),
            ],
        ),
        (["--hf-token", "--port", "-1"], [("hf-token", []), ("port", ["-1"])]),
        (["--hf-token", "a", "b"], [("hf-token", ["a"]), ("", ["b"])]),
        (["-", "--watermark", "-.5"], [("", ["-"]), ("watermark", ["-.5"])]),
    ],
)
def test_words_are_read_as_flags_and_values(words: list[str], read: list[tuple[str, list[str]]]) -> None:
    found = list(serve_vllm.TABLE.read(words))
    assert [(each.name, each.values) for each in found] == read
    assert [word for each in found for word in each.words] == words


def test_the_models_own_length_may_be_given_and_one_token_more_may_not() -> None:
    assert read_serve("vllm serve opt-13b --max-model-len 2048").options["max_model_len"] == 2048
    assert refusal("vllm serve opt-13b --max-model-len 2049") == (
        "--serve: --max-model-len is 2049, more than the 2048 tokens of opt-13b; vLLM does not start so"
    )
    assert refusal("sglang serve opt-13b --context-length 2049") == (
        "--serve: --context-length is 2049, more than the 2048 tokens of opt-13b; SGLang does not start so"
    )


@pytest.mark.parametrize("name", ["scheduler", "reservation", "allocator", "page_size"])
def test_no_part_of_the_engine_is_replaced_beside_its_line(name: str) -> None:
    for line, engine in (("vllm serve opt-13b", "vLLM"), ("sglang serve opt-13b", "SGLang")):
        served = read_serve(line)
        with pytest.raises(ps.PagesimError) as caught:
            served.merged_with({"gpu": "h100", name: "other"})
        assert str(caught.value) == f"--serve is about {engine} as it is; leave {name} other out"
        # The engine's own name says nothing new, and neither does what was left out.
        assert (
            served.merged_with({"gpu": "h100", name: served.options["policy"]})[name]
            == served.options["policy"]
        )
        assert served.merged_with({"gpu": "h100", name: None, "model": None})["model"] == "opt-13b"


@pytest.mark.parametrize("command", ["wllm serve", "ullm serve", "vllm run", "rglang serve", "tglang serve"])
def test_no_other_command_is_taken_for_a_servers(command: str) -> None:
    assert refusal(f"{command} opt-13b").startswith(
        f"--serve is '{command} opt-13b'; it must begin with vllm"
    )


def test_the_last_of_several_methods_of_quantization_counts() -> None:
    line = "serve llama-3.1-8b --quantization awq --quantization fp8"
    assert read_serve(f"vllm {line}").options["weight_dtype"] == "fp8"
    assert read_serve(f"sglang {line}").options["weight_dtype"] == "fp8"
    assert "--quantization awq affects" in refusal("vllm serve llama-3.1-8b -q fp8 -q awq")
