"""The page on hybrid caches: its tables are what its script makes now."""

from __future__ import annotations

import pytest

from tests.pages import module_of

MADE = module_of("docs/make_hybrid.py")
TEXT = MADE.PAGE.read_text("utf-8")


@pytest.mark.slow_but("holdings gemma3-27b", "concurrency qwen3-next-80b", "prefixes falcon-h1-7b")
@pytest.mark.parametrize(
    ("table", "model"),
    [pytest.param(table, name, id=f"{table} {name}") for table in MADE.ROWS for name in MADE.MODELS],
)
def test_a_model_has_these_rows(table: str, model: str) -> None:
    rows = MADE.ROWS[table](model)
    assert rows
    assert "\n".join(rows) in TEXT


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    assert MADE.page() == TEXT


def test_prompts_of_conversations_repeat_what_was_said_and_full_attention_finds_nearly_all() -> None:
    (row,) = MADE.found_again("llama-3.1-8b")
    found = float(row.split("|")[3])
    assert 0 < 100 * MADE.repeated() - found < 0.5
