"""Parts of a model's layers: latent attention, and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values are cached as one latent vector a token and layer.

    ``q_lora_rank`` is 0 where queries are not compressed, ``index_heads`` and ``index_head_dim`` where no
    indexer picks the tokens that are read, ``index_topk`` where it is not known how many it picks.
    Source: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3.2.
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0

    @property
    def width(self) -> int:
        """Elements of the latent vector, its rotary part included."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """MLP layers made of experts, of which a token visits ``experts_per_token`` and every shared one.

    Attributes:
        experts: a layer.
        experts_per_token: of these, visited by a token.
        expert_ffn: inner width of an expert.
        shared_experts: visited by every token besides.
        shared_ffn: inner width of all shared experts together, 0 where each is as wide as an expert.
        shared_gate: a gate weighs what the shared experts give.
        dense_layers: layers that have one plain MLP of the model's ``ffn`` instead.
        correction_bias: the router has a bias by which it balances the load.
        biases: the router and the experts' matrices have biases.
        latent: width of what experts that are not shared take and give, between two projections; 0 without.
        wide_router: the router's weights have 32 bits.
        exact_router: they do where no kernel of the GPU computes in 32 bits with weights of 16.
        beside: the shared experts are the layer's plain MLP, beside which the others stand (Gemma 4).
    """

    experts: int
    experts_per_token: int
    expert_ffn: int
    shared_experts: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    correction_bias: bool = False
    biases: bool = False
    latent: int = 0
    wide_router: bool = False
    exact_router: bool = False
    beside: bool = False

    def touched(self, tokens: int) -> float:
        """Return the share of a layer's experts that so many tokens visit, from 0 to 1.

        It is expected where each token visits ``experts_per_token`` different ones, all sets of them equally
        likely and independent of the other tokens'. Real routers prefer some, so fewer are visited.
        """
        return 1 - (1 - self.experts_per_token / self.experts) ** tokens
