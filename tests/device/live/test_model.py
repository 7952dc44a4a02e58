"""Random models: of a spec's shapes, to the last parameter; the same whatever way a sequence is computed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pagesim as ps  # noqa: E402
from pagesim.device.live.model import Model, check_model  # noqa: E402
from pagesim.device.live.tokens import TokenIds  # noqa: E402
from pagesim.models import ModelSpec, model  # noqa: E402

CPU = torch.device("cpu")
SMALL = {
    "layers": 2,
    "hidden": 128,
    "ffn": 192,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 100,
    "max_model_len": 64,
    "source": "a test",
}
OPT = {
    "kv_heads": 4,
    "gated": False,
    "layer_norm": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "position_rows": 66,
    "tied": True,
}
SHAPES = {
    "LLaMA": {},
    "OPT": OPT,
    "OPT-350M": {**OPT, "embedding": 96, "final_norm": False},
    "Qwen2.5": {"qkv_bias": True, "tied": True},
    "Qwen3": {"qk_norm": True},
    "one norm": {"norms_per_layer": 1},
}


def made(**traits):
    return Model(
        ModelSpec(name="m", **{**SMALL, **traits}), dtype=torch.float32, device=CPU, longest=64, seed=1
    )


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_the_spec(name):
    made_model = made(**SHAPES[name])
    assert made_model.parameters == made_model.spec.parameters


def causal(layer, queries, keys, values):
    from pagesim.kernels.reference import attend

    return attend(queries, keys, values, queries.shape[-1] ** -0.5)


@pytest.mark.slow_but("OPT", "Qwen3")
@pytest.mark.parametrize("name", SHAPES)
def test_logits_depend_on_every_token_its_place_and_the_seed(name):
    tokens, positions = torch.arange(20), torch.arange(20)
    one = made(**SHAPES[name])
    right = one.forward(tokens, positions, positions[-1:], causal)
    assert right.shape == (1, 100)
    assert right.isfinite().all()
    torch.testing.assert_close(one.forward(tokens, positions, positions[-1:], causal), right)
    other = tokens.clone()
    other[3] = 77
    swapped = tokens.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    for changed in (other, swapped):
        assert (one.forward(changed, positions, positions[-1:], causal) - right).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "longest", "said"),
    [
        ("deepseek-v3", 10, "mixture of experts"),
        ("gemma3-27b", 10, r"layers of other kinds \(10 full, 52 window 1024\)"),
        (
            "opt-125m",
            2049,
            "max_model_len lets a sequence have 2049 tokens; model opt-125m has positions for 2048",
        ),
    ],
)
def test_a_model_that_is_not_built_is_refused(name, longest, said):
    with pytest.raises(ps.PagesimError, match=said):
        check_model(model(name), longest)


def test_tokens_are_the_same_in_any_order_and_differ_between_samples():
    from pagesim.scheduling.request import EngineRequest, Family

    tokens = TokenIds(1000, seed=4)
    request = EngineRequest(0, row=3, arrival=0, prompt=10, output=9, family=Family(10, (9, 9), None))
    first, second = tokens.of(request, 0, 0, 16), tokens.of(request, 1, 0, 16)
    assert (first[:10] == second[:10]).all()
    assert (first[10:] != second[10:]).any()
    assert (tokens.of(request, 0, 7, 13) == first[7:13]).all()
    assert (TokenIds(1000, seed=5).of(request, 0, 0, 16) != first).any()
    assert first.min() >= 0
    assert first.max() < 1000
    tokens.take_over(request, 1, 0, 14)
    heir = tokens.of(request, 1, 0, 16)
    assert (heir[:14] == first[:14]).all()
    assert (heir[14:] == second[14:]).all()
