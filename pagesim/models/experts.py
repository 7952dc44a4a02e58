"""Experts on the GPUs of a deployment with data or expert parallelism."""

from __future__ import annotations

from typing import NamedTuple


class ExpertDivision(NamedTuple):
    """How the experts that are not shared are divided over the GPUs of all data-parallel ranks.

    Source: vLLM 0.33.0, model_executor/layers/fused_moe/config.py, 1116 to 1240, and
    expert_map_manager.py, 66 to 69.

    Attributes:
        ranks: data-parallel ranks, each of as many GPUs as tensor parallelism has.
        whole: whether each GPU has whole experts (expert parallelism); if not, a part of each.
        rank: whose GPUs are looked at.
        mlps: whether MLPs and shared experts are divided over all of them, too (SGLang's attention DP).
        head: whether the LM head is.
        shared_over: GPUs that divide a shared expert; 0 where it is divided as MLPs are.
    """

    ranks: int = 1
    whole: bool = False
    rank: int = 0
    mlps: bool = False
    head: bool = False
    shared_over: int = 0

    def on_each_gpu(self, experts: int, tp: int) -> list[int]:
        """Return the experts on each GPU, rank after rank, ``[ranks · tp]``; of each a part unless whole.

        Args:
            experts: of a layer.
            tp: GPUs of a rank.
        """
        gpus = self.ranks * tp
        if not self.whole:
            return [experts] * gpus
        each, rest = divmod(experts, gpus)
        return [each + (gpu < rest) for gpu in range(gpus)]

    def shares(self, experts: int, tp: int) -> tuple[int, int]:
        """Return how many GPUs divide an expert, and the experts on the fullest GPU of the rank."""
        held = self.on_each_gpu(experts, tp)[self.rank * tp]
        return (1 if self.whole else self.ranks * tp), held

    def others_over(self, group: str, tp: int, *, divides_tokens: bool) -> int:
        """Return how many GPUs divide a tensor that is of no routed expert.

        Args:
            group: of the tensor, one of `weights.GROUPS`.
            tp: GPUs of a rank.
            divides_tokens: whether the model's class divides a rank's tokens among its GPUs before experts
                (``use_sequence_parallel_moe``), as DeepSeek's and Llama 4's do.
        """
        if group == "shared" and divides_tokens and self.whole and tp > 1 and self.ranks > 1:
            return 1  # each GPU has it whole
        if group == "shared" and self.shared_over:
            return self.shared_over
        over_all = (self.mlps and group in ("mlp", "shared")) or (self.head and group == "head")
        return tp * self.ranks if over_all else tp
