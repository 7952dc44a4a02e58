"""What is said of a model that has no row."""

from __future__ import annotations

import pytest

from pagesim.errors import PagesimError
from pagesim.models import model


def test_an_unknown_id_is_answered_with_how_to_give_its_config() -> None:
    with pytest.raises(PagesimError) as error:
        model("some/model-7B")
    said = str(error.value)
    assert "https://huggingface.co/some/model-7B/blob/main/config.json" in said
    with pytest.raises(PagesimError, match=r"did you mean Qwen/Qwen3-32B or .* Else give its config.json"):
        model("Qwen/Qwen3-33B")
    with pytest.raises(PagesimError, match="did you mean opt-13b"):
        model("opt-13")


def test_a_dense_release_in_fp8_counts_its_layers_so() -> None:
    """Qwen3 32B: all but the head and the token table, 151,936 rows of 5,120 each, in 8 bits."""
    spec, base = model("Qwen/Qwen3-32B-FP8-Static-PerTensor"), model("qwen3-32b")
    tables = 2 * 151936 * 5120
    saved = base.weight_bytes_per_gpu(1) - spec.weight_bytes_per_gpu(1)
    assert 0 <= (base.parameters - tables) - saved < 1 << 22  # norms stay, and layers have scales
    assert spec.kv_dtype == "fp8"
