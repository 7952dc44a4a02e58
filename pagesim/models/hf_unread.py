"""Unread keys of a Hugging Face config that may change a model's size.

An unknown key is never ignored: one that may carry a size makes the model's weights an estimate, and one that
may change what the layers keep is refused. `HARMLESS` matches keys that are known to do neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models.hf_config import HfConfig

LAYER_FILE = (
    "list what each layer keeps in a layer file and give that as the model "
    '(docs/reference/plan.md, "Models whose layers differ")'
)
"""Advice for configs whose layers cannot be read."""

HARMLESS = re.compile(
    r"_.*|architectures|auto_map|.*dtype|transformers_version|.*_plan"
    # tokens, positions, lengths
    r"|.*token(_id|_ids|_index|izer.*)|.*tokens?_per_(image|second|patch|frame)|.*_placeholder.*|id2label|label2id"
    r"|num_labels|(?!.*dim).*(rope|rotary).*|rotary_(emb_)?dim|(original_|text_)?max_position_embeddings|max_window_layers|initial_context_length"
    r"|(model_)?max_(length|seq_len|sequence_length|seq_length)|seq_?length|seq_len|image_seq_length|min_length"
    # scales, rounding, dropout, initialization
    r"|.*(dropout|drop|_eps|epsilon|_coef|_alpha|_beta|_limit|softcap(ping)?|temperature.*)"
    r"|.*scal(e|es|ing|ar)(_factor|_weights)?"
    r"|(attention(_in|_out)?|embedding|key|lm_head|residual|ssm_in|ssm_out)_multiplier|(mlp|ssm)_multipliers|init(ializer)?_.*|.*_init(ializer)?(_.*)?|time_step_.*|logits?_.*|.*_softmax_in_fp32|aux_.*|.*aux"
    # how experts are selected and placed
    r"|n_group|topk_group|num_expert_group|norm_topk_prob|(num_)?experts_per_tok(en)?|moe_(k|topk|capacity|norm_min)"
    r"|moe_(renormalize|use_aux_free|shared_expert_overlap)|use_grouped_topk|topk_.*|(ep|tp|pp)_size|pretraining_tp"
    r"|output_router_logits"
    # layers that predict further tokens, which are loaded only for speculative decoding
    r"|.*mtp.*|num_nextn_predict_layers"
    # computation, training, generation
    r"|use_cache|cache_implementation|return_dict.*|output_(attentions|hidden_states|scores|past)|use_(mamba_kernels|associative_scan|gemma_norm)"
    r"|(mamba_)?chunk_size(_feed_forward)?|num_logits_to_keep|rescale_prenorm_residual|residual_in_fp32"
    r"|mamba_norm_before_gate|use_parallel_residual|parallel_attn|.*floor_scale|ignore_index|summary_.*|hidden_act.*"
    r"|(num_)?beams?|num_beam_groups|num_return_sequences|top_[kp]|typical_p|.*_penalty|.*no_repeat_ngram_size"
    r"|do_sample|early_stopping|problem_type|task_specific_params|pruned_heads|bad_words_ids|finetuning_task"
    r"|hc_sinkhorn_iters|img_token_compression_config|projector_hidden_act|quantization_config|compression_config|text_config|generation_config|image_processor_config"
    r"|(image|video|audio|vision|projector|boi|eoi|boa|eoa|media|mm|multimodal)_"
    r"(?!.*(hidden_size|intermediate|projection|dim|encoder|tower|layers|heads|experts|rank)).*"
    r"|spatial_merge_size|use_unified_vision_chunk"
)
"""Keys that change neither the size of a model's weights nor what its layers keep."""

_KEEPS = re.compile(
    r".*((?<![a-z])(kv|k|v)(?![a-z])|key_value|window|compress|sparse_att|linear_att|cross_att|ssm|mamba|index_"
    r"|indexer|state_size|per_layer_config).*"
)
"""Keys that may change what the layers keep."""

_WEIGHS = re.compile(
    r".*(bias|norm|gate|cross|gating|gated|glu|moe|expert|tie|share|adapter|embed|conv|mlp|ffn|sink|head).*"
)
"""Keys that may add or remove weights if their value is true."""

_RATIOS = re.compile(r".*(ratio|mult|expan|factor|width).*")
"""Keys that may determine a width if their value is a fraction."""

_KINDS = re.compile(r".*(pattern|tower|(layer|block|attn|attention|mlp|ffn|norm|head)s?_?types?).*")
"""Keys that may specify kinds of layers if their value is a string or a list of strings."""

_DEEPEST = 16
"""Depth to which nested values are searched; deeper ones are assumed to matter."""


def unread(config: HfConfig) -> tuple[str, ...]:
    """Return the unread keys that may change a model's number of parameters.

    Raises:
        PagesimError: an unread key may change what its layers keep; the message names it.
    """
    found = tuple(
        key
        for key, value in config.given.items()
        if key not in config.asked and not HARMLESS.fullmatch(key) and _says_something(key, value)
    )
    for key in found:
        if _KEEPS.fullmatch(key):
            raise PagesimError(
                f"{config.where}: {key} is {brief(config.given[key])}, and what the layers of model_type "
                f"{config.model_type} then keep is not known here; {LAYER_FILE}"
            )
    return found


def _says_something(key: str, value: Any, depth: int = 0) -> bool:
    """Return whether a value may be a size, a number of parts, or the kinds of parts."""
    if depth > _DEEPEST:
        return True
    if isinstance(value, bool):
        return value and bool(_WEIGHS.fullmatch(key))
    if isinstance(value, int):
        return value > 0
    if isinstance(value, float):
        return value > 0 and bool(_RATIOS.fullmatch(key))
    if isinstance(value, str):
        return bool(value and _KINDS.fullmatch(key))
    if isinstance(value, Mapping):
        return any(_says_something(f"{key}.{name}", each, depth + 1) for name, each in value.items())
    if isinstance(value, list | tuple):
        return any(_says_something(key, each, depth + 1) for each in value)
    return False
