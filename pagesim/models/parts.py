"""Parts of a model's layers: latent attention, and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent vector per token and layer caches keys and values.

    ``q_lora_rank`` is 0 if queries are not compressed. ``index_heads`` and ``index_head_dim`` are 0 if no
    indexer selects the tokens to read, and ``index_topk`` if the number that it selects is not known.
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
        """Elements of the latent vector, including its rotary part."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """MoE layers, in which each token visits ``experts_per_token`` routed experts and all shared ones.

    Attributes:
        experts: routed experts per layer.
        experts_per_token: routed experts that a token visits.
        expert_ffn: inner width of an expert.
        shared_experts: further experts, visited by every token.
        shared_ffn: inner width of all shared experts together; 0 if each is as wide as a routed one.
        shared_gate: whether a gate scales the output of the shared experts.
        dense_layers: layers that have one plain MLP of the model's ``ffn`` instead.
        correction_bias: whether the router has a bias for load balancing.
        biases: whether the router and the experts' matrices have biases.
        latent: input and output width of routed experts if they sit between two projections; else 0.
        wide_router: whether the router's weights have 32 bits.
        exact_router: likewise on GPUs without a kernel that computes in 32 bits from 16-bit weights.
        beside: whether the shared experts are the layer's plain MLP, next to the routed ones (Gemma 4).
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
        """Return the expected fraction of a layer's experts that ``tokens`` tokens visit, from 0 to 1.

        Each token is assumed to draw ``experts_per_token`` distinct experts uniformly and independently of
        the other tokens. Real routers prefer some experts, so fewer are visited.
        """
        return 1 - (1 - self.experts_per_token / self.experts) ** tokens
