"""What drafts and divided experts add to a roofline, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagesim.costs import Efficiency, EngineTime, Roofline, step_shape
from pagesim.costs.roofline import DraftForwards, busiest_share
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.models.experts import ExpertDivision
from pagesim.setup.drafting import drafting_of
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND

IDEAL = Efficiency(flops=1, hbm=1, kv=1, link=1, prompts=1, experts=1, experts_hbm=1, launch_s=0)
FREE = EngineTime(graphs_to=1 << 20)
OPT, A100 = model("opt-13b"), gpu("a100-40gb")
HBM, FLOPS = A100.hbm_bytes_per_s, A100.fp16_flops
# Of a layer of OPT-13B: four matrices of attention, and two of four times the width.
LAYER, HEAD = 12 * 5120 * 5120 * 2, 50_272 * 5120 * 2
TOKEN = 2 * 40 * 5120 * 2
"""Bytes of a token's keys and values in 40 layers."""


def part(cost: Roofline, name: str, shape: object) -> float:
    return cost.parts(shape)[name] / TICKS_PER_SECOND  # type: ignore[arg-type]


@pytest.mark.parametrize("drafts", [3, 511])
def test_a_sequence_and_its_drafts_read_its_context_once_and_each_computes_with_it(drafts: int) -> None:
    shape = step_shape(1, 1000)._replace(tokens=1 + drafts, sampled=1 + drafts, drafts=drafts)
    computed = (1 + drafts) * 1000 * 4 * 40 * 5120 / FLOPS
    got = part(Roofline(OPT, A100, efficiency=IDEAL, engine=FREE), "decode attention", shape)
    assert got == pytest.approx(max(1000 * TOKEN / HBM, computed), rel=1e-3)
    assert (computed > 1000 * TOKEN / HBM) == (drafts == 511)


def test_a_prompt_of_one_token_with_drafts_reads_no_context() -> None:
    # As where all before it was found: nothing decodes beside it.
    shape = step_shape(0, 0)._replace(tokens=4, sampled=4, drafts=3, query_key_pairs=1000)
    assert part(Roofline(OPT, A100, efficiency=IDEAL, engine=FREE), "decode attention", shape) == 0


def test_a_head_runs_as_often_as_it_has_drafts_with_a_layer_and_the_models_own_lm_head() -> None:
    cost = Roofline(OPT, A100, efficiency=IDEAL, engine=FREE, drafter=DraftForwards(3, 1, 1))
    shape = step_shape(1, 1000)._replace(tokens=4, sampled=4, drafts=3)
    forward = (LAYER + HEAD + 1000 * TOKEN / 40) / HBM
    assert part(cost, "drafter", shape) == pytest.approx(3 * forward, rel=0.01)
    without = Roofline(OPT, A100, efficiency=IDEAL, engine=FREE)
    more = (cost.iteration(shape) - without.iteration(shape)) / TICKS_PER_SECOND
    assert more == part(cost, "drafter", shape)
    assert cost.decode(1, 1000) == (cost.iteration(step_shape(1, 1000)), pytest.approx(1, abs=1e12), 1)


def test_a_drafter_of_its_own_reads_its_own_weights_and_cache_and_one_in_parallel_runs_once() -> None:
    small = model("opt-6.7b")
    shape = step_shape(2, 1000)._replace(tokens=10, sampled=10, drafts=8)
    read = small.weight_bytes + 1000 * 2 * 32 * 4096 * 2
    for forwards, at_once in ((4, 1), (1, 4)):
        drafter = DraftForwards(forwards, at_once, 1, small)
        got = part(Roofline(OPT, A100, efficiency=IDEAL, engine=FREE, drafter=drafter), "drafter", shape)
        assert got == pytest.approx(forwards * read / HBM, rel=0.01)


def test_ranks_gather_the_tokens_of_all_and_scatter_the_sums_back() -> None:
    spec = model("qwen3-30b-a3b")
    machine = replace(A100, peer=replace(A100.peer, all_reduces=None))
    divided = replace(spec, expert_division=ExpertDivision(4, True))
    cost = Roofline(divided, machine, efficiency=IDEAL, engine=FREE)
    # Each of 4 ranks gets the hidden states of the 3 others' 100 tokens, 2048 numbers of 2 bytes, and sends
    # as much back, in each of 48 layers.
    sent = 2 * 3 * 100 * 2048 * 2 / machine.peer.bytes_per_s
    got = part(cost, "all-reduces", step_shape(100, 100))
    assert got == pytest.approx(48 * (machine.peer.latency_s + sent), rel=1e-6)
    assert part(Roofline(spec, machine, efficiency=IDEAL), "all-reduces", step_shape(100, 100)) == 0


@pytest.mark.parametrize("head", [False, True])
def test_ranks_of_attention_read_their_part_of_an_mlp_and_gather_the_tokens_of_all(head: bool) -> None:
    machine = replace(A100, peer=replace(A100.peer, all_reduces=None))
    spec = model("llama-3.1-8b")
    alone, divided = (
        Roofline(each, machine, efficiency=IDEAL, engine=FREE)
        for each in (spec, replace(spec, expert_division=ExpertDivision(4, mlps=True, head=head)))
    )
    shape = step_shape(10, 10)
    # Three matrices of 4096 by 14336 in each of 32 layers, of which each of 4 GPUs has a quarter; and a head.
    less = part(alone, "linear layers", shape) - part(divided, "linear layers", shape)
    assert less == pytest.approx(3 / 4 * 32 * 3 * 4096 * 14336 * 2 / HBM, rel=1e-6)
    less = part(alone, "LM head", shape) - part(divided, "LM head", shape)
    assert less == pytest.approx(3 / 4 * 128_256 * 4096 * 2 / HBM if head else 0, rel=1e-6)
    # Each rank gets 4096 numbers of 2 bytes of the 3 others' 10 tokens, and sends as much back.
    sent = 2 * 3 * 10 * 4096 * 2 / machine.peer.bytes_per_s
    got = part(divided, "all-reduces", shape)
    assert got == pytest.approx(32 * (machine.peer.latency_s + sent), rel=1e-6)


@pytest.mark.parametrize(("visits", "gpus"), [(256, 8), (4096, 8), (4096, 64)])
def test_the_busiest_gpu_has_what_it_has_where_visits_are_drawn(visits: int, gpus: int) -> None:
    drawn = np.random.default_rng(0).multinomial(visits, np.full(gpus, 1 / gpus), 4000)
    assert busiest_share(visits, gpus) == pytest.approx(drawn.max(axis=1).mean() * gpus / visits, rel=0.03)
    assert busiest_share(visits, 1) == busiest_share(0, gpus) == 1


def test_experts_that_compute_wait_for_the_busiest_gpu() -> None:
    spec = model("qwen3-30b-a3b")
    whole, parts = (
        Roofline(replace(spec, expert_division=ExpertDivision(1, each)), A100, tp=4, efficiency=IDEAL)
        for each in (True, False)
    )
    tokens = 20_000  # each with 8 visits of three matrices of 2048 x 768 in 48 layers
    experts = tokens * 8 * 2 * 3 * 2048 * 768 * 48 / 4 / FLOPS
    shape = step_shape(0, 0)._replace(tokens=tokens)
    more = part(whole, "linear layers", shape) - part(parts, "linear layers", shape)
    assert more == pytest.approx(experts * (busiest_share(8 * tokens, 4) - 1), rel=0.01)


@pytest.mark.parametrize(
    ("config", "forwards"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 3}', None),
        ('{"method": "eagle3", "num_speculative_tokens": 3}', DraftForwards(3, 1, 1)),
        ('{"method": "dflash", "num_speculative_tokens": 7}', DraftForwards(1, 7, 5)),
        (
            '{"method": "draft_model", "model": "opt-125m", "num_speculative_tokens": 2}',
            DraftForwards(2, 1, 12, model("opt-125m")),
        ),
    ],
)
def test_a_method_says_how_its_drafter_runs(config: str, forwards: DraftForwards | None) -> None:
    system = System(policy="vllm-v1", model="opt-13b", gpu="h100", speculative_config=config)
    assert drafting_of(EngineConfig(system)).forwards == forwards
