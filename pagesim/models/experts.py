"""How experts are divided over GPUs under data or expert parallelism."""

from __future__ import annotations

from typing import NamedTuple


class ExpertBalancer(NamedTuple):
    """What vLLM's expert parallel load balancer (EPLB) keeps on each GPU besides the model's experts.

    Source: vLLM 0.33.0, ``EplbState.add_model`` in distributed/eplb/eplb_state.py.

    Attributes:
        redundant: copies of experts in each layer, over all GPUs.
        window: iterations whose loads of each expert are kept.
    """

    redundant: int = 0
    window: int = 1000

    def map_bytes(self, experts: int, layers: int) -> int:
        """Return the bytes of the maps between experts and their copies, and of the loads.

        Args:
            experts: routed experts of a layer, without redundant ones.
            layers: layers with experts.
        """
        copies = experts + self.redundant
        of_experts = experts * (8 * MOST_COPIES + 8 + 8)  # each one's copies, how many, and its last load
        return layers * (of_experts + copies * (8 + 4 + 4 * self.window))


MOST_COPIES = 1024
"""Entries for the copies of each expert (``MAX_EXPERT_REDUNDANCY`` and one more)."""


class ExpertDivision(NamedTuple):
    """How the routed experts are divided over the GPUs of all data-parallel ranks.

    Source: vLLM 0.33.0, model_executor/layers/fused_moe/config.py, 1116 to 1240, and
    expert_map_manager.py, 66 to 69.

    Attributes:
        ranks: data-parallel ranks, each with as many GPUs as the tensor-parallel degree.
        whole: whether each GPU has whole experts (expert parallelism) rather than a part of each.
        rank: index of the rank whose GPUs are described.
        mlps: whether MLPs and shared experts are also divided over all ranks (SGLang's attention DP).
        whole_mlps: whether each GPU has the MLPs of layers without experts whole.
        head: whether the LM head is also divided over all ranks.
        shared_over: GPUs over which a shared expert is divided; 0 if it is divided like an MLP.
        balancer: vLLM's expert parallel load balancer (EPLB); None if it is off.
    """

    ranks: int = 1
    whole: bool = False
    rank: int = 0
    mlps: bool = False
    whole_mlps: bool = False
    head: bool = False
    shared_over: int = 0
    balancer: ExpertBalancer | None = None

    def on_each_gpu(self, experts: int, tp: int) -> list[int]:
        """Return how many experts, or parts of them unless ``whole``, each GPU holds, ``[ranks · tp]``.

        Redundant experts count.

        Args:
            experts: routed experts of a layer.
            tp: GPUs per rank.
        """
        gpus = self.ranks * tp
        if not self.whole:
            return [experts] * gpus
        each, rest = divmod(experts + (self.balancer.redundant if self.balancer else 0), gpus)
        return [each + (gpu < rest) for gpu in range(gpus)]

    def shares(self, experts: int, tp: int) -> tuple[int, int]:
        """Return over how many GPUs an expert is divided, and the experts on the rank's fullest GPU."""
        held = self.on_each_gpu(experts, tp)[self.rank * tp]
        return (1 if self.whole else self.ranks * tp), held

    def others_over(self, group: str, tp: int, *, divides_tokens: bool) -> int:
        """Return over how many GPUs a tensor is divided that belongs to no routed expert.

        Args:
            group: the tensor's group, one of `weights.GROUPS`.
            tp: GPUs per rank.
            divides_tokens: whether the model's class splits a rank's tokens among its GPUs before the
                experts (``use_sequence_parallel_moe``), as DeepSeek's and Llama 4's do.
        """
        if group == "shared" and divides_tokens and self.whole and tp > 1 and self.ranks > 1:
            return 1  # each GPU holds it whole
        if group == "shared" and self.shared_over:
            return self.shared_over
        if group == "mlp" and self.whole_mlps:
            return 1
        over_all = (self.mlps and group in ("mlp", "shared")) or (self.head and group == "head")
        return tp * self.ranks if over_all else tp
