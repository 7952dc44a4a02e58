"""OPT, LLaMA, Mistral, Qwen and DeepSeek V3: models whose shape follows from their size."""

from __future__ import annotations

from dataclasses import replace

from pagesim.models.model_spec import LatentAttention, MixtureOfExperts, ModelSpec


def _opt(size: str, layers: int, hidden: int, heads: int, source: str = "") -> ModelSpec:
    # 350m alone embeds in 512 dimensions, norms after each block and so has no norm at the end.
    small = size == "350m"
    return ModelSpec(
        name=f"opt-{size}",
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=50272,  # 50,265 and padding
        max_model_len=2048,
        source=source or f"config.json of facebook/opt-{size}; OPT (arXiv 2205.01068), table 1",
        gated=False,
        layer_norm=True,
        final_norm=not small,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        position_rows=2050,  # the first two rows are never looked up
        embedding=512 if small else 0,
        tied=True,
    )


def _llama(
    name: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    *,
    vocab: int = 32000,
    max_model_len: int,
    source: str,
    tied: bool = False,
) -> ModelSpec:
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=vocab,
        max_model_len=max_model_len,
        source=source,
        tied=tied,
    )


def _llama3(name: str, *shape: int, max_model_len: int = 131072, tied: bool = False) -> ModelSpec:
    layers, hidden, ffn, heads = shape
    source = f"config.json of the {name} release; Llama 3 (arXiv 2407.21783), table 3"
    if name.startswith("llama-3.2"):
        source = f"config.json of meta-llama/Llama-3.2-{name[-2:].upper()}"
    return _llama(
        name,
        layers,
        hidden,
        ffn,
        heads,
        8,
        vocab=128256,
        max_model_len=max_model_len,
        source=source,
        tied=tied,
    )


def _qwen25(size: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int) -> ModelSpec:
    small = size in ("0.5b", "1.5b", "3b")
    return ModelSpec(
        name=f"qwen2.5-{size}",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab=151936 if small else 152064,
        max_model_len=32768,
        source=f"config.json of Qwen/Qwen2.5-{size.upper()}-Instruct",
        qkv_bias=True,
        tied=small,
    )


def _qwen3(size: str, layers: int, hidden: int, ffn: int, heads: int) -> ModelSpec:
    return ModelSpec(
        name=f"qwen3-{size}",
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab=151936,
        max_model_len=40960,
        source=f"config.json of Qwen/Qwen3-{size.upper()}",
        qk_norm=True,
        tied=size in ("0.6b", "1.7b", "4b"),
    )


_QWEN25_7B = _qwen25("7b", 28, 3584, 18944, 28, 4)

_LLAMA1 = "LLaMA (arXiv 2302.13971), table 2"
_LLAMA2 = "config.json of meta-llama/Llama-2-{}-hf"

SHAPES: tuple[ModelSpec, ...] = (
    _opt("125m", 12, 768, 12),
    _opt("350m", 24, 1024, 16),
    _opt("1.3b", 24, 2048, 32),
    _opt("2.7b", 32, 2560, 32),
    _opt("6.7b", 32, 4096, 32),
    _opt("13b", 40, 5120, 40),
    _opt("30b", 48, 7168, 56),
    _opt("66b", 64, 9216, 72),
    _opt("175b", 96, 12288, 96, source="OPT (arXiv 2205.01068), table 1; tables as in the smaller sizes"),
    _llama("llama-7b", 32, 4096, 11008, 32, 32, max_model_len=2048, source=_LLAMA1),
    _llama("llama-13b", 40, 5120, 13824, 40, 40, max_model_len=2048, source=_LLAMA1),
    _llama("llama-33b", 60, 6656, 17920, 52, 52, max_model_len=2048, source=_LLAMA1),
    _llama("llama-65b", 80, 8192, 22016, 64, 64, max_model_len=2048, source=_LLAMA1),
    _llama("llama-2-7b", 32, 4096, 11008, 32, 32, max_model_len=4096, source=_LLAMA2.format("7b")),
    _llama("llama-2-13b", 40, 5120, 13824, 40, 40, max_model_len=4096, source=_LLAMA2.format("13b")),
    _llama("llama-2-70b", 80, 8192, 28672, 64, 8, max_model_len=4096, source=_LLAMA2.format("70b")),
    _llama3("llama-3-8b", 32, 4096, 14336, 32, max_model_len=8192),
    _llama3("llama-3-70b", 80, 8192, 28672, 64, max_model_len=8192),
    _llama3("llama-3.1-8b", 32, 4096, 14336, 32),
    _llama3("llama-3.1-70b", 80, 8192, 28672, 64),
    _llama3("llama-3.1-405b", 126, 16384, 53248, 128),
    _llama3("llama-3.2-1b", 16, 2048, 8192, 32, tied=True),
    _llama3("llama-3.2-3b", 28, 3072, 8192, 24, tied=True),
    # v0.3 rather than v0.1, whose sliding window would let old tokens go.
    _llama(
        "mistral-7b",
        32,
        4096,
        14336,
        32,
        8,
        vocab=32768,
        max_model_len=32768,
        source="config.json of mistralai/Mistral-7B-v0.3",
    ),
    replace(_QWEN25_7B, name="qwen2-7b", source="config.json of Qwen/Qwen2-7B-Instruct"),
    _qwen25("0.5b", 24, 896, 4864, 14, 2),
    _qwen25("1.5b", 28, 1536, 8960, 12, 2),
    _qwen25("3b", 36, 2048, 11008, 16, 2),
    _QWEN25_7B,
    _qwen25("14b", 48, 5120, 13824, 40, 8),
    _qwen25("32b", 64, 5120, 27648, 40, 8),
    _qwen25("72b", 80, 8192, 29568, 64, 8),
    _qwen3("0.6b", 28, 1024, 3072, 16),
    _qwen3("1.7b", 28, 2048, 6144, 16),
    _qwen3("4b", 36, 2560, 9728, 32),
    _qwen3("8b", 36, 4096, 12288, 32),
    _qwen3("14b", 40, 5120, 17408, 40),
    _qwen3("32b", 64, 5120, 25600, 64),
    ModelSpec(
        name="deepseek-v3",
        layers=61,
        hidden=7168,
        ffn=18432,
        heads=128,
        kv_heads=128,
        head_dim=128,
        vocab=129280,
        max_model_len=163840,
        source="config.json of deepseek-ai/DeepSeek-V3, without its multi-token prediction module",
        mla=LatentAttention(
            kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536
        ),
        moe=MixtureOfExperts(
            experts=256,
            experts_per_token=8,
            expert_ffn=2048,
            shared_experts=1,
            dense_layers=3,
            correction_bias=True,
        ),
    ).with_weights("fp8_block"),  # as released
)
"""Family by family, small to large."""

TINY = _llama(
    "tiny",
    2,
    256,
    688,
    4,
    2,
    vocab=1024,
    max_model_len=2048,
    source="no released model: LLaMA's shape at a size that a CPU runs in milliseconds",
)

_LLAMA2_KINDS = ("-hf", "-chat-hf")


def hub_ids() -> dict[str, str]:
    """Return names by the ids, in small letters, under which these shapes are released on Hugging Face."""
    names = [spec.name for spec in SHAPES]
    ids = {f"facebook/{name}": name for name in names if name.startswith("opt-")}
    for size in ("7b", "13b", "70b"):
        ids |= dict.fromkeys(
            (f"meta-llama/llama-2-{size}{kind}" for kind in _LLAMA2_KINDS), f"llama-2-{size}"
        )
    for name in [name for name in names if name.startswith("llama-3")]:
        for maker in ("meta-llama/", "meta-llama/meta-") if name < "llama-3.2" else ("meta-llama/",):
            ids |= dict.fromkeys((f"{maker}{name}", f"{maker}{name}-instruct"), name)
    ids |= dict.fromkeys(("mistralai/mistral-7b-v0.3", "mistralai/mistral-7b-instruct-v0.3"), "mistral-7b")
    # The larger base models of Qwen2.5, and those of Qwen3, are for other lengths.
    ids |= {f"qwen/{name}-instruct": name for name in names if name.startswith("qwen2.5-")}
    ids |= {f"qwen/qwen2.5-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b")}
    ids |= {f"qwen/{name}": name for name in names if name.startswith("qwen3-")}
    return ids | dict.fromkeys(("deepseek-ai/deepseek-v3", "deepseek-ai/deepseek-r1"), "deepseek-v3")
