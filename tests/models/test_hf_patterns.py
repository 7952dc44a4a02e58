"""Names and patterns of a ``quantization_config``: which modules they are about, and in what time."""

from __future__ import annotations

import re
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.errors import PagesimError
from pagesim.models import from_hf_config
from pagesim.models.hf_modules import Module
from pagesim.models.hf_patterns import find

MODULES = [
    Module(group, 1, name, layer)
    for layer in (0, 1, 2, 10, 31, 101)
    for group, name in (
        ("attention", "q_proj"),
        ("mlp", "gate_proj"),
        ("mlp", "down_proj"),
        ("experts", "up_proj"),
    )
] + [Module("head", 1)]


def error(pattern: str, wanted: str) -> PagesimError:
    return PagesimError(f"{pattern[:40]} must be {wanted}")


def found(*patterns: str) -> set[Module]:
    return set(find(MODULES, [(pattern, True) for pattern in patterns], error))


ATOMS = st.sampled_from(
    (
        *("model", "layers", "mlp", "self_attn", "experts", "lm_head", "proj", "_", "1", "10", "^", "$", ""),
        *(r"\.", ".", r"\d", "[0-9]", "[^a]", r"\w", "(gate|up)_proj", "(?:q|gate)", "(mlp|self_attn)"),
    )
)
REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}"])
PIECES = st.tuples(ATOMS, REPEATS).map(lambda both: f"(?:{both[0]}){both[1]}" if both[1] else both[0])
EXPRESSIONS = st.lists(PIECES, max_size=5).map("".join)
ANCHORED = st.tuples(st.sampled_from(["", ".*", "^.*", "^model", "(?:.*)?"]), EXPRESSIONS).map("".join)


@given(ANCHORED)
def test_an_expression_matches_as_the_standard_library_has_it(expression: str) -> None:
    expected = {module for module in MODULES if any(re.match(expression, name) for name in module.names)}
    assert found(f"re:{expression}") == expected


@given(
    st.lists(st.sampled_from(["model", "layers", "mlp", "1", "10", "*", "**", ".", ".", "gate_proj", "?"]))
)
def test_a_glob_matches_whole_parts_of_a_name_wherever_they_stand(parts: list[str]) -> None:
    glob = "".join([*parts, "*"])
    text = re.sub(r"\*+", "*", glob)
    pattern = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in text)
    expected = {
        module for module in MODULES if any(re.match(rf"(?:.*\.)?{pattern}", name) for name in module.names)
    }
    assert found(glob) == expected


@pytest.mark.parametrize(
    ("pattern", "groups", "layers"),
    [
        ("re:.*mlp.*", {"mlp", "experts"}, {0, 1, 2, 10, 31, 101}),
        (r"re:model\.layers\.\d+\..*", {"attention", "mlp", "experts"}, {0, 1, 2, 10, 31, 101}),
        ("re:.*(gate|experts).*", {"mlp", "experts"}, {0, 1, 2, 10, 31, 101}),
        (r"re:.*layers\.1\..*", {"attention", "mlp", "experts"}, {1}),
        ("model.layers.1", {"attention", "mlp", "experts"}, {1}),
        ("model.layers.1*", {"attention", "mlp", "experts"}, {1, 10, 101}),
        ("model.layers.10.self_attn.q_proj", {"attention"}, {10}),
        ("model.layers.10.self_attn.qkv_proj", {"attention"}, {10}),
        ("self_attn", {"attention"}, {0, 1, 2, 10, 31, 101}),
        ("lm_head", {"head"}, {-1}),
        ("re:.*lm_head", {"head"}, {-1}),
        ("q_pro", set(), set()),
        ("", set(), set()),
    ],
)
def test_names_and_patterns_as_they_are_released(pattern: str, groups: set[str], layers: set[int]) -> None:
    modules = found(pattern)
    assert {module.group for module in modules} == groups
    assert {module.layer for module in modules} == layers


def test_a_name_goes_before_a_pattern_and_otherwise_the_first_entry_counts() -> None:
    entries = [
        ("re:.*s\\.1.*mlp.*", 1),
        ("*mlp*", 2),
        ("model.layers.1.mlp", 3),
        ("layers.1.mlp.gate_proj", 4),
    ]
    said = find(MODULES, entries, error)
    assert [said[Module("mlp", 1, "gate_proj", layer)] for layer in (0, 1, 10)] == [2, 3, 1]


SHAPE = {
    **{"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 94},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 100},
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 8},
    "max_position_embeddings": 4096,
}


def read(section: dict[str, Any], **keys: Any) -> Any:
    return from_hf_config({**SHAPE, **keys, "quantization_config": section})


MIXED = {
    f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj": {"quant_algo": "NVFP4"}
    for layer in range(94)
    for expert in range(80)
    for name in ("gate", "up", "down")
}
LISTS = {
    "names": {
        "quant_method": "fp8",
        "modules_to_not_convert": ["lm_head", *(f"model.layers.{i}.mlp.gate" for i in range(94))]
        + [f"model.layers.{i}.{norm}_layernorm" for i in range(94) for norm in ("input", "post_attention")],
    },
    "globs": {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": [
            f"model.layers.{i}.{part}*" for i in range(94) for part in ("self_attn", "mlp.gate", "norm")
        ],
    },
    "22,560 layers": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED},
}


@pytest.mark.parametrize("kind", LISTS)
def test_long_lists_are_read_at_once(kind: str) -> None:
    before = process_time()
    spec = read(LISTS[kind])
    assert process_time() - before < 3  # 12 to 60 where each entry is tried on each module
    assert spec.weights.experts.name in ("fp8", "nvfp4")
    assert (spec.weights.attention.name == "bf16") == (kind != "names")


HOSTILE = {
    "nested": [r"re:(.*)*(.*)*(.*)*(.*)*(.*)*x{5}$"],
    "one in another": ["re:" + "(" * 6 + "a*" + ")*" * 6 + "b"],
    "many stars": ["*" * 12 + "!"],
    "many runs": ["re:" + ".*" * 30 + "x"],
    "alternatives": ["re:(a|a|ab|[a-z])*!"],
    "deep": ["re:" + "(" * 2000 + ")" * 2000],
    "large": ["re:(x{60000}){60000}", "re:a{99999999999}"],
    "long": ["re:" + "(a?b?c?)*" * 20_000],
    "costly": ["re:" + "(.?.?.?)*" * 1000 + "x"],
    "no expression": ["re:(("],
    "back": [r"re:(.*)\1\1\1"],
    "ahead": ["re:(?=.*a)(?!.*b).*"],
    "flags": ["re:(?i)LM_HEAD"],
    "many": [f"re:.*layers.*{i}.*mlp.*{i}" for i in range(10_000)],
    "many globs": [f"*{i}*{i}*" for i in range(5_000)],
    "surrogate": ["\udc80*", "re:\udc80"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_patterns_are_compared_or_refused_in_one_sentence_at_once(kind: str) -> None:
    before = process_time()
    try:
        read({"quant_method": "fp8", "modules_to_not_convert": HOSTILE[kind]})
        said = ""
    except PagesimError as refused:
        said = str(refused)
    assert process_time() - before < 8
    wanted = r"(the config: quantization_config\.modules_to_not_convert is .*; it must be [^\n]*)?"
    assert re.fullmatch(wanted, said)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("back", "a pattern that RE2 takes: without look-around and back-references"),
        ("ahead", "a pattern that RE2 takes: without look-around and back-references"),
        ("no expression", "a pattern that RE2 takes"),
        ("large", "a pattern that RE2 takes"),
        ("long", "at most 10000 characters long"),
        ("many", "one of at most 5000 patterns"),
    ],
)
def test_what_cannot_be_compared_is_said(kind: str, said: str) -> None:
    with pytest.raises(PagesimError, match=said):
        read({"quant_method": "fp8", "modules_to_not_convert": HOSTILE[kind]})
