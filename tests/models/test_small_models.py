"""Small models of every family: their parameters and layers as transformers makes them.

``small_models.json`` was written with transformers 5.23.0, each model made on the meta device: a config that
is silent where the family's own class has a default, the elements of all parameters, and the kinds of layers
that keep something, in order. Of DeepSeek V3 and MiniMax M2 the corrections of routing are counted, too, one
an expert and layer, which transformers calls a buffer and checkpoints hold.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagesim.models import from_hf_config

MODELS = json.loads(Path(__file__).with_name("small_models.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODELS)
def test_a_small_model_has_the_parameters_and_layers_of_its_family(name: str) -> None:
    expected = MODELS[name]
    spec = from_hf_config(expected["config"])
    assert spec.parameters == expected["parameters"]
    if "layers" in expected:
        assert [layer.kind for layer in spec.cache_layers] == expected["layers"].split()
