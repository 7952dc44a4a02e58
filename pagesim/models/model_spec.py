"""ModelSpec: a decoder-only transformer's shape, and the bytes and operations derived from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from math import ceil

from pagesim.errors import PagesimError, brief
from pagesim.models.encoder import Encoder
from pagesim.models.exactness import Trust, notes, trust
from pagesim.models.experts import ExpertDivision
from pagesim.models.layers import (
    MOST,
    ChunkLayer,
    FullLayer,
    LatentLayer,
    Layer,
    StateLayer,
    kept_per_token,
    kv_element_bytes,
    kv_heads_per_gpu,
)
from pagesim.models.parameters import REST, TABLES, TOWER, Tensor, count, tensors
from pagesim.models.parts import LatentAttention, MixtureOfExperts
from pagesim.models.recurrent import Recurrence
from pagesim.models.weights import ALL_BF16, BF16, REST_BYTES, Compute, Weights, usual_weights

MOST_PARTS = 65_536
"""More layers, heads or experts than this are taken for a mistake, as are sizes above `MOST`."""

_SIZES = ("window", "chunk")
_MAY_BE_0 = (
    *("position_rows", "embedding", "q_lora_rank", "shared_experts", "shared_ffn", "dense_layers"),
    *("mlp_layers", "index_heads", "index_head_dim", "index_topk", "latent", "act_numbers"),
    *("tower", "tower_whole", "tower_heads", "qk_rope_head_dim", "norms_per_layer"),
)
_OF_WEIGHTS = ("hidden", "ffn", "vocab")  # all 0 if only the model's cache layers are known
_PARTS = ("layers", "heads", "kv_heads", "experts", "experts_per_token", "shared_experts", "index_heads")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    Args:
        name: the model's name in pagesim.
        layers: transformer layers.
        hidden: width of the residual stream.
        ffn: inner width of the (dense) MLP.
        heads: query heads.
        kv_heads: key and value heads; under MLA this is the number of heads.
        head_dim: width of one head; under MLA that of one value head.
        vocab: rows of the token embedding table, including padding rows.
        max_model_len: the longest sequence the model was made for, in tokens.
        source: where these numbers come from, in one line.
        gated: whether the MLP has a gate (SwiGLU: three matrices) rather than two matrices.
        layer_norm: whether norms have weight and bias (LayerNorm) rather than a weight alone (RMSNorm).
        norms_per_layer: norms of width ``hidden`` in a layer.
        final_norm: whether a norm follows the last layer.
        qkv_bias: whether the query, key and value projections have biases.
        out_bias: whether attention's output projection has a bias.
        mlp_bias: whether the MLP has biases.
        qk_norm: whether there is a norm of width ``head_dim`` on queries and one on keys.
        wide_qk_norm: likewise, but over all heads together.
        split_qk_norm: whether the weights of that norm are divided over GPUs; else each GPU has all of them.
        output_gate: whether the query projection also computes a gate for attention's output.
        sinks: whether each head has an attention sink, a learned weight for attending to nothing.
        position_rows: rows of a learned position table; 0 without one.
        embedding: width of the token table; 0 if it is ``hidden``, otherwise it is projected in and out.
        tied: whether the token table also serves as the LM head.
        weights: dtypes of the linear layers, as served.
        mla: latent attention, or None.
        moe: mixture of experts, or None.
        recurrence: shape of the recurrent layers, or None.
        mlp_layers: layers that have an MLP or experts; 0 if all do.
        cached: what each layer keeps for previous tokens, in order; an indexer is an entry of its own. Empty
            if all ``layers`` are full attention, or latent attention under MLA.
        base: name of the model of which this is a quantized release.
        unverified: whether neither the release's ``config.json`` nor a copy of it was seen.
        approximate: whether the family is unknown here, so that parameters are counted as for LLaMA.
        act_numbers: learned parameters of an MLP's activation function.
        tower: parameters of the vision tower that tensor parallelism divides.
        tower_whole: parameters of the vision tower that every GPU keeps.
        encoder: the vision tower's input sizes; None if they are not known.
        tower_heads: heads that tp must divide, else each GPU keeps the whole tower; 0 if tp need not.
        left_out: parts other than the language model that are not counted, such as "audio tower".
        unread: config keys that may change the weights and are not read.
        kv_dtype: KV cache dtype if the checkpoint specifies one: fp8 or nvfp4; else '', for 16 bits.
        kv_by_vllm: whether vLLM alone follows it, and not SGLang (compressed-tensors).
        fp8_on_sm10x: whether vLLM's latent vectors are in fp8 on Blackwell server GPUs by default (GLM-5).
        sglang_images: what SGLang goes by if it serves images (`hf_vision.sglang_images`); else None.
        image_prefixes: whether the tokens of an image attend to one another in both directions (Gemma 3).
        attending: indices of the layers that attend, from 0; empty if they are the first ones.
        recurring: likewise for the layers that keep a state.
        plain, sparse: likewise for the layers with a plain MLP and with experts, in a model with experts;
            empty if the layers with a plain MLP come first.
        ffns: inner width of each layer's plain MLP if they differ; 0 for a layer without one.
        extras: tensors that the other fields do not describe.
        own_attention: whether ``extras`` contains all tensors of attention.
        expert_division: how experts are divided over GPUs, if not like everything else.
        mtp: what the MTP modules keep for previous tokens, if not full attention like the model's own; empty
            if they read the model's own KV cache.

    ``hidden``, ``ffn`` and ``vocab`` are 0 if only ``cached`` is known. Such a model has neither weights nor
    a roofline, and can be served only where the blocks or bytes of the cache are given.

    Raises:
        PagesimError: a size is not a positive whole number, or heads are not a multiple of kv_heads.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_model_len: int
    source: str
    gated: bool = True
    layer_norm: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    split_qk_norm: bool = False
    output_gate: bool = False
    sinks: bool = False
    position_rows: int = 0
    embedding: int = 0
    tied: bool = False
    weights: Weights = ALL_BF16
    mla: LatentAttention | None = None
    moe: MixtureOfExperts | None = None
    recurrence: Recurrence | None = None
    mlp_layers: int = 0
    cached: tuple[Layer, ...] = ()
    unverified: bool = False
    approximate: bool = False
    base: str = ""
    act_numbers: int = 0
    tower: int = 0
    tower_whole: int = 0
    encoder: Encoder | None = None
    tower_heads: int = 0
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    kv_dtype: str = ""
    kv_by_vllm: bool = False
    fp8_on_sm10x: bool = False
    sglang_images: tuple[str, int, int] | None = None
    image_prefixes: bool = False
    attending: tuple[int, ...] = ()
    recurring: tuple[int, ...] = ()
    plain: tuple[int, ...] = ()
    sparse: tuple[int, ...] = ()
    ffns: tuple[int, ...] = ()
    extras: tuple[Tensor, ...] = ()
    own_attention: bool = False
    expert_division: ExpertDivision | None = None
    mtp: tuple[Layer, ...] | None = None

    def __post_init__(self) -> None:
        self._check(self)
        if self.mla:
            self._check(self.mla)
        if self.recurrence:
            self._check(self.recurrence)
        if not self.attention_layers:
            raise PagesimError(
                f"model {self.name}: no layer attends, so it has no KV cache; choose a model that attends"
            )
        if self.moe:
            self._check(self.moe)
            if self.moe.experts_per_token > self.moe.experts:
                raise PagesimError(
                    f"model {self.name}: experts_per_token is {self.moe.experts_per_token}; it must be at "
                    f"most the {self.moe.experts} experts"
                )
        if self.heads % self.kv_heads:
            raise PagesimError(
                f"model {self.name}: {self.heads} heads cannot share {self.kv_heads} kv_heads evenly"
            )

    @property
    def shape_name(self) -> str:
        """Name of the model that has this shape: ``base`` if there is one."""
        return self.base or self.name

    @property
    def has_weights(self) -> bool:
        """Whether the weights are known, not only what the layers cache."""
        return bool(self.hidden or self.ffn or self.vocab)

    def _check(self, part: ModelSpec | LatentAttention | MixtureOfExperts | Recurrence) -> None:
        may_be_0 = _MAY_BE_0 if not self.cached or self.has_weights else (*_MAY_BE_0, *_OF_WEIGHTS)
        for f in fields(part):
            if f.type != "int":
                continue
            value = getattr(part, f.name)
            least = 0 if f.name in may_be_0 else 1
            most = MOST_PARTS if f.name in _PARTS else MOST
            most *= 512 if f.name in ("tower", "tower_whole") else 1  # counts of parameters
            if not least <= value <= most:
                raise PagesimError(
                    f"model {self.name}: {f.name} is {brief(value)}; it must be a positive number, at most "
                    f"{most}"
                )

    @property
    def cache_layers(self) -> tuple[Layer, ...]:
        """What each layer keeps for previous tokens, in order."""
        if self.cached:
            return self.cached
        if self.mla:
            return (LatentLayer(self.mla.width),) * self.layers
        return (FullLayer(self.kv_heads, self.head_dim),) * self.layers

    @property
    def keeps_all(self) -> bool:
        """Whether all layers keep every token, and are of one kind and size."""
        first, *others = dict.fromkeys(self.cache_layers)
        return not others and first.kind in ("full", "latent")

    @property
    def is_plain(self) -> bool:
        """Whether all layers are full attention of the same shape."""
        return self.keeps_all and self.cache_layers[0].kind == "full"

    @property
    def attention_layers(self) -> int:
        """Number of attention layers, of any kind."""
        return sum(isinstance(layer, FullLayer | LatentLayer) for layer in self.cache_layers)

    @property
    def state_layers(self) -> int:
        """Number of layers that keep a recurrent state; a layer that also attends counts as both."""
        return sum(isinstance(layer, StateLayer) for layer in self.cache_layers)

    @property
    def layers_in_words(self) -> str:
        """Number of layers of each kind, as in "10 full, 52 window 1024"; MLP-only layers are not named."""

        def first(kind: tuple[str, int]) -> tuple[bool, str]:
            return not kind[0].startswith(("full", "latent")), kind[0]

        kept = Counter(
            " ".join((layer.kind, *(str(getattr(layer, size)) for size in _SIZES if hasattr(layer, size))))
            for layer in self.cache_layers
        )
        return ", ".join(f"{number} {kind}" for kind, number in sorted(kept.items(), key=first))

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats about this model's numbers for its users, one sentence each."""
        return notes(self)

    @property
    def weights_are(self) -> Trust:
        """How far to trust the parameters (`exactness.trust`): exact, language model only or estimated."""
        return trust(self)

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA or MLA."""
        if self.mla:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def parameters(self) -> int:
        """Number of parameters, with a tied LM head counted once (see ``pagesim.models.parameters``).

        ``weights_are`` tells whether it is exact.
        """
        return sum(count(self).values())

    @property
    def active_parameters(self) -> int:
        """Number of parameters that one token uses: of the experts, only those that it visits."""
        return sum(count(self, active=True).values())

    def with_weights(self, name: str) -> ModelSpec:
        """Return this model in a weight dtype, as such checkpoints are usually released (`usual_weights`).

        Raises:
            PagesimError: there is no such weight dtype.
        """
        groups = [group for group, number in count(self).items() if number]
        return replace(self, weights=usual_weights(name, groups), kv_dtype="")

    @property
    def weights_in_words(self) -> str:
        """Weight dtypes except the LM head's, such as ``bf16, experts mxfp4``; fp16 is shown as bf16."""
        if not self.has_weights:
            return BF16.name
        groups = (group for group, number in count(self).items() if number and group != "head")
        names = {group: dtype.name for group in groups if (dtype := self.weights.of(group)) is not None}
        alike = {group: BF16.name if name == "fp16" else name for group, name in names.items()}
        base = alike.get("attention", BF16.name)
        return ", ".join((base, *(f"{group} {name}" for group, name in alike.items() if name != base)))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, without replicas."""
        return self.weight_bytes_per_gpu(1)

    def weight_bytes_per_gpu(self, tp: int) -> int:
        """Return the weight bytes on the fullest of ``tp`` GPUs (`Tensor.shape` tells what is divided)."""
        return sum(self.weight_bytes_by_group(tp).values())

    def weight_bytes_by_group(self, tp: int) -> dict[str, int]:
        """Return the weight bytes on the fullest GPU by group: the fields of ``Weights``, and ``rest``."""
        self.kv_heads_per_gpu(tp)
        found: dict[str, float] = {REST: 0, "head": 0}
        for tensor in tensors(self):
            found[tensor.group] = found.get(tensor.group, 0) + self.bytes_on_gpu(tensor, tp)
        found[REST] += self.weights.cache_scales * self.attention_layers
        return {group: round(size) for group, size in found.items()}

    def bytes_on_gpu(self, tensor: Tensor, tp: int) -> float:
        """Return the bytes of one tensor, summed over its layers, on the fullest of ``tp`` GPUs."""
        if tensor.copies == 1:
            division, shards = self.expert_division, tp
            if division is not None:
                has_chunks = any(isinstance(layer, ChunkLayer) for layer in self.cached)
                divides_tokens = self.mla is not None or has_chunks
                shards = division.others_over(tensor.group, tp, divides_tokens=divides_tokens)
            return self.weights.bytes(tensor, shards)
        shards, held = self.expert_shares(tp)
        return self.weights.bytes(tensor, shards) * held / tensor.copies

    def expert_shares(self, tp: int) -> tuple[int, int]:
        """Return over how many GPUs an expert is divided, and the experts on the fullest; else 1 and 0."""
        if self.moe is None:
            return 1, 0
        if self.expert_division is None:
            return tp, self.moe.experts
        return self.expert_division.shares(self.moe.experts, tp)

    def expert_bytes_per_gpu(self, tp: int) -> int:
        """Return the weight bytes of routed experts on the fullest of ``tp`` GPUs."""
        return self.weight_bytes_by_group(tp).get("experts", 0)

    def kv_heads_per_gpu(self, tp: int) -> int:
        """Return the KV heads on each of ``tp`` GPUs; fewer heads than GPUs are replicated, as in vLLM.

        Raises:
            PagesimError: the heads cannot be divided evenly over ``tp`` GPUs.
        """
        if tp < 1 or self.heads % tp:
            allowed = ", ".join(str(d) for d in range(1, self.heads + 1) if self.heads % d == 0)
            listed = "" if self.has_weights else "; a layer file's heads says how many query heads there are"
            raise PagesimError(
                f"tp is {tp}; {self.name} has {self.heads} heads, so it must be one of {allowed}{listed}"
            )
        return kv_heads_per_gpu(self.kv_heads, tp, self.name)

    def kv_bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the KV cache bytes of one token on each of ``tp`` GPUs: keys and values of all layers.

        MLA keeps one latent vector of kv_lora_rank + qk_rope_head_dim for all heads, whole on every GPU.
        Layers with a window or chunks count as long as they keep the token; recurrent layers do not count.

        Raises:
            PagesimError: an unknown ``kv_dtype``, or a ``tp`` that the heads do not allow.
        """
        kv_element_bytes(kv_dtype)
        self.kv_heads_per_gpu(tp)
        layers = [layer for layer in self.cache_layers if not isinstance(layer, StateLayer)]
        return sum(kept_per_token(layer, kv_dtype, tp) for layer in layers)

    @property
    def linear_flops_per_token(self) -> int:
        """Operations of all matrix products with weights for one token, including the LM head's.

        Two per active parameter; tables that are looked up rather than multiplied do not count.
        """
        return sum(self.flops_by_compute.values()) + self.lm_head_flops_per_token

    @property
    def flops_by_compute(self) -> dict[Compute, int]:
        """Operations of one token's matrix products without the LM head's, by compute type."""
        found: dict[Compute, int] = {"fp16": 0}
        for tensor in tensors(self):
            dtype = self.weights.of(tensor.group)
            compute: Compute = "fp16" if dtype is None else dtype.compute
            if tensor.group not in ("head", TOWER) and tensor.name not in TABLES:
                found[compute] = found.get(compute, 0) + 2 * tensor.numbers(active=True)
        return found

    @property
    def expert_flops_per_token(self) -> int:
        """The part of these operations that routed experts account for."""
        experts = (tensor for tensor in tensors(self) if tensor.group == "experts")
        return 2 * sum(tensor.numbers(active=True) for tensor in experts)

    @property
    def layer_weight_bytes(self) -> int:
        """Bytes of weights read in every iteration: without tables, routed experts and the LM head."""
        return round(
            sum(
                self.weights.bytes(tensor)
                for tensor in tensors(self)
                if tensor.group not in ("head", "experts", TOWER) and tensor.name not in TABLES
            )
        )

    @property
    def lm_head_compute(self) -> Compute:
        """Compute type of the LM head's products."""
        return "fp16" if self.tied else self.weights.head.compute

    @property
    def lm_head_bytes(self) -> int:
        """Bytes of the LM head, even if it is the token table."""
        parameters = self.vocab * (self.embedding or self.hidden)
        return ceil(parameters * (REST_BYTES if self.tied else self.weights.head.bits / 8))

    @property
    def lm_head_flops_per_token(self) -> int:
        """The LM head's part of ``linear_flops_per_token``, needed only for positions that are sampled."""
        return 2 * self.vocab * (self.embedding or self.hidden)

    @property
    def attention_flops_per_pair(self) -> int:
        """Operations per pair of query and key token in decoding: QK and PV, all layers and heads.

        Layers with a window or chunks count as if they attended to the key token; recurrent layers do not.
        MLA decodes in its absorbed form: the latent vector is both key (with its rotary part) and value.
        """
        if self.mla:
            width = 2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
            return 2 * self.attention_layers * self.heads * width
        return 4 * self.attention_layers * self.heads * self.head_dim

    @property
    def prefill_attention_flops_per_pair(self) -> int:
        """The same for prefill; it differs only under MLA, which expands keys and values there."""
        if self.mla:
            widths = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim + self.mla.v_head_dim
            return 2 * self.attention_layers * self.heads * widths
        return self.attention_flops_per_pair
