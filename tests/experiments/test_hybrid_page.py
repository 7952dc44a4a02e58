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


def test_the_page_has_no_other_rows_and_says_how_much_was_said_before() -> None:
    for table, head in MADE.HEADS.items():
        part = TEXT.split(MADE.BEGIN.format(table))[1].split(MADE.END.format(table))[0]
        each = 2 if table == "holdings" else 1
        assert part.startswith("\n".join(head))
        assert len([line for line in part.splitlines() if line.startswith("|")]) == 2 + each * len(
            MADE.MODELS
        )
    assert f"Of these prompts {100 * MADE.repeated():.1f} % were said before" in TEXT


def test_full_attention_finds_nearly_all_that_prompts_of_conversations_repeat() -> None:
    (row,) = MADE.found_again("llama-3.1-8b")
    found = float(row.split("|")[3])
    assert 0 < 100 * MADE.repeated() - found < 0.5
