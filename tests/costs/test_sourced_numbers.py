"""Numbers with a source, beside what that source says, in its own unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagesim.costs.assumptions import DENSE, ERRORS, EXPERTS
from pagesim.costs.engines import UNKNOWN, engine_time
from pagesim.costs.operators.aiconfigurator import HOST_LAUNCH_S
from pagesim.costs.operators.iteration import ELEMENTWISE_LAUNCH_S
from pagesim.costs.operators.launches import launching
from pagesim.costs.operators.reduces import EAGER_S
from pagesim.costs.profiles.rescale import LAUNCH_S
from pagesim.costs.roofline import Efficiency
from pagesim.hardware import gpu, gpus
from pagesim.hardware.tier_spec import NVME, RDMA
from pagesim.models import model

ROOT = Path(__file__).resolve().parents[2]
ROUNDED = 0.013
"""Datasheets round: the L40S' 724.1 Tflop/s in FP8 stand there as 733."""

# As each datasheet prints it: memory bandwidth in TB/s, Tflop/s of FP16, FP8 and FP4 on tensor cores (None
# where there are none), and how often those hold what they are without sparsity. The whitepapers' rates are
# those that accumulate in FP32. Of systems: what is printed of all, over the number of GPUs.
DATASHEETS = {
    "a100-40gb": (1.555, 312, None, None, 1),
    "a100-80gb": (2.039, 312, None, None, 1),
    "h100": (3.35, 1979, 3958, None, 2),
    "h200": (4.8, 1979, 3958, None, 2),
    "l4": (0.300, 242, 485, None, 2),
    "rtx-4090": (1.008, 165.2, 330.3, None, 1),
    "rtx-3090": (0.936, 71, None, None, 1),
    "l40s": (0.864, 724.1, 1466, None, 2),
    "h20": (4.0, 148, 296, None, 1),
    "b200": (64 / 8, 36_000 / 8, 72_000 / 8, 144_000 / 8, 2),
    "gb200": (576 / 72, 360_000 / 72, 720_000 / 72, 1_440_000 / 72, 2),
    "b300": (64 / 8, 36_000 / 8, 72_000 / 8, 2 * 108_000 / 8, 2),
    "mi300x": (5.3, 1307.4, 2614.9, None, 1),
    "mi355x": (8.0, 2516.6, 5033.2, None, 1),
    "a10g": (0.600, 70, None, None, 1),
    "rtx-5090": (1.792, 209.5, 419, 1676, 1),
    "rtx-pro-6000": (1.792, 503.8, 1007.6, 2015.2, 1),
    "gb10": (0.273, 250, 500, 1000, 2),  # 1,000 in FP4 are printed
    "l40": (0.864, 362.05, 724, None, 2),
    "rtx-3060": (0.360, 25.5, None, None, 1),
    "rtx-3080": (0.760, 59.5, None, None, 1),
    "rtx-5060-ti": (0.448, 759 / 16, 759 / 8, 759 / 2, 1),  # 759 AI TOPS: FP4 with sparsity
    "rtx-5070-ti": (0.896, 87.9, 175.8, 703, 1),
    "rtx-a5000": (0.768, 222.2, None, None, 2),
    "rtx-a6000": (0.768, 309.7, None, None, 2),
    "v100": (0.900, 125, None, None, 1),
    "r9700": (0.645, 191, 383, None, 1),
    "h100-pcie": (2.0, 1513, 3026, None, 2),
    "h100-nvl": (3.9, 1671, 3341, None, 2),
    "gh200": (4.0, 1979, 3958, None, 2),
    "h20-3e": (4.8, 148, 296, None, 1),
    "rtx-4090-d": (1.008, 147.1, 294.2, None, 1),
    "gb300": (576 / 72, 360_000 / 72, 720_000 / 72, 2 * 1_080_000 / 72, 2),
}


@pytest.mark.parametrize("name", [spec.name for spec in gpus()])
def test_a_gpu_computes_and_reads_as_its_datasheet_says(name: str) -> None:
    terabytes, fp16, fp8, fp4, sparse = DATASHEETS[name]
    spec = gpu(name)
    assert spec.hbm_bytes_per_s == pytest.approx(terabytes * 1e12, rel=0.001)
    for rate, printed in ((spec.fp16_flops, fp16), (spec.fp8_flops, fp8), (spec.fp4_flops, fp4)):
        if printed is None:
            assert rate is None
        else:
            assert rate == pytest.approx(printed / sparse * 1e12, rel=ROUNDED)


# GT/s of 16 pairs of wires; 128 of 130 bits are data up to 5.0, and 242 of 256 bytes of a flit in 6.0.
WIRES = {"PCIe 3.0": 8 * 16 * 128 / 130 / 8, "PCIe 5.0 x8": 32 * 8 * 128 / 130 / 8}
WIRES |= {"PCIe 4.0": 16 * 16 * 128 / 130 / 8, "PCIe 5.0": 32 * 16 * 128 / 130 / 8, "PCIe 6.0": 64 * 16 / 8}
HOSTS = {
    **dict.fromkeys(("a100-40gb", "a100-80gb", "l4", "rtx-4090", "rtx-3090", "l40s", "a10g"), "PCIe 4.0"),
    **dict.fromkeys(("h100", "h200", "h20", "b200", "mi300x", "mi355x"), "PCIe 5.0"),
    **dict.fromkeys(("rtx-5090", "rtx-pro-6000"), "PCIe 5.0"),
    "b300": "PCIe 6.0",
    **dict.fromkeys(("l40", "rtx-3060", "rtx-3080", "rtx-a5000", "rtx-a6000"), "PCIe 4.0"),
    **dict.fromkeys(("rtx-5070-ti", "r9700"), "PCIe 5.0"),
    **dict.fromkeys(("h100-pcie", "h100-nvl", "h20-3e"), "PCIe 5.0"),
    "rtx-4090-d": "PCIe 4.0",
    "rtx-5060-ti": "PCIe 5.0 x8",
    "v100": "PCIe 3.0",
}
GRACE = {"gb200": 2, "gb300": 2, "gh200": 1}
"""GPUs beside a Grace CPU, by the name of one."""

# GB/s of a GPU as printed, both ways together.
PEERS = {
    **dict.fromkeys(("a100-40gb", "a100-80gb"), 600),
    **dict.fromkeys(("h100", "h200", "h20", "h20-3e", "gh200"), 900),
    "h100-nvl": 600,
    **dict.fromkeys(("b200", "gb200", "b300", "gb300"), 1800),
    "mi300x": 7 * 128,
    "mi355x": 7 * 153.6,
    "v100": 300,
}


@pytest.mark.parametrize("name", [spec.name for spec in gpus()])
def test_links_carry_what_their_standards_and_datasheets_say(name: str) -> None:
    spec = gpu(name)
    if name == "gb10":
        # Memory that is the host's, too, read and written at 273 GB/s together; a port of 200 Gb/s.
        assert (spec.host.bytes_per_s, spec.peer.bytes_per_s) == (273e9 / 2, 200e9 / 8)
        return
    if name in GRACE:
        # NVLink-C2C of a Grace CPU: 900 GB/s both ways together, for the GPUs beside it.
        assert spec.host.bytes_per_s == 900e9 / 2 / GRACE[name]
    else:
        # Large copies from pinned memory reach some four fifths of the wire.
        assert spec.host.bytes_per_s == pytest.approx(0.8 * WIRES[HOSTS[name]] * 1e9, rel=0.02)
        assert HOSTS[name] in spec.host.note
    if name in PEERS:
        assert spec.peer.bytes_per_s == PEERS[name] / 2 * 1e9
        assert spec.peer.latency_s == 5e-6
    else:
        assert spec.peer.bytes_per_s == spec.host.bytes_per_s
        assert spec.peer.latency_s == 20e-6
    assert spec.host.latency_s == (5e-6 if name in GRACE else 10e-6)


def test_tiers_are_as_fast_as_announced() -> None:
    # Samsung PM9A3 U.2: sequential reads of 6,500 MB/s, writes of 3,500 MB/s. A port of 200 Gb/s has 25 GB/s.
    assert [link.bytes_per_s for link in NVME] == [6500e6, 3500e6]
    assert RDMA.bytes_per_s == 200e9 / 8


# Milliseconds an iteration and microseconds a sequence. docs/validation/reproduction.md has the paper's;
# those of vLLM 0.2 and of dense models under asynchronous scheduling others measured (0.7 to 1 ms); the rest
# was fitted (docs/validation/accuracy.md, docs/reference/roofline.md).
@pytest.mark.parametrize(
    ("scheduler", "release", "ahead", "served", "iteration_ms", "sequence_us"),
    [
        ("static", None, False, "opt-13b", 1.5, 165),
        ("orca", None, False, "opt-13b", 1.5, 165),
        ("vllm-sosp", None, False, "opt-13b", 1.5, 165),
        ("vllm-v0", "0.2.0", False, "opt-13b", 9.0, 400),
        ("vllm-v1", "0.10.2", False, "llama-3.1-70b", 1.3, 43),
        ("vllm-v1", "0.33.0", False, "gpt-oss-120b", 1.3, 43),
        ("vllm-v1", "0.17.0", True, "llama-3.1-70b", 0.75, 15),
        ("vllm-v1", "0.33.0", True, "llama-3.1-8b", 0.75, 15),
        ("vllm-v1", "0.16.0", True, "minimax-m2.5", 1.0, 10.7),
        ("vllm-v1", "0.33.0", True, "deepseek-v3", 1.0, 10.7),
        ("vllm-v1", "0.18.0", True, "gpt-oss-120b", 0.27, 8.7),
        ("sglang", None, False, "llama-3.1-8b", 1.3, 43),
        ("sglang", None, True, "llama-3.1-8b", 0.75, 15),
        ("trtllm", None, False, "llama-3.1-8b", 1.3, 43),
        ("trtllm", None, True, "gpt-oss-120b", 0.27, 8.7),
        ("lightllm", None, False, "llama-3.1-8b", 1.3, 43),
    ],
)
def test_an_engines_loop_takes_what_was_measured_or_fitted(
    scheduler: str, release: str | None, ahead: bool, served: str, iteration_ms: float, sequence_us: float
) -> None:
    time = engine_time(scheduler, release, asynchronous=ahead, model=model(served))
    assert time.iteration_s * 1e3 == pytest.approx(iteration_ms)
    assert time.sequence_s * 1e6 == pytest.approx(sequence_us)


def test_an_engine_that_nobody_measured_takes_3_ms_an_iteration() -> None:
    assert (UNKNOWN.iteration_s, UNKNOWN.sequence_s) == (3e-3, 0.0)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        # 32 layers of 0.3 ms.
        ("llama-3.1-8b", 9.6),
        # 48 layers of 0.3 ms, all with experts, 0.9 ms more each.
        ("qwen3-30b-a3b", 57.6),
        # 61 layers of 0.3 ms and 1.1 ms more for latent attention, and 0.9 ms for the 58 with experts.
        ("deepseek-v3", 137.6),
    ],
)
def test_the_host_launches_layers_in_the_milliseconds_that_public_runs_differ_by(
    name: str, milliseconds: float
) -> None:
    found = launching(model(name))
    assert found.prompt_s * 1e3 == pytest.approx(milliseconds)
    assert found.mixed_s == found.prompt_s


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [
        (LAUNCH_S, 36 / 9),  # Vidur's linear layers of Llama-2-7B on an A100: 36 us a layer of nine kernels
        (ELEMENTWISE_LAUNCH_S, 3),  # as the operators' own authors take it
        (EAGER_S, 16),  # what whole runs say of an all-reduce that no graph launches
        (HOST_LAUNCH_S, 20),  # what parts kernels that were timed as the host launches them
    ],
)
def test_launches_of_kernels_take_the_microseconds_of_their_sources(
    seconds: float, microseconds: float
) -> None:
    assert seconds * 1e6 == pytest.approx(microseconds)


def test_a_roofline_reaches_the_shares_that_its_page_gives() -> None:
    shares = Efficiency(flops=0.50, hbm=0.90, kv=0.88, link=1, prompts=0.16, experts=0.19, experts_hbm=0.78)
    assert shares == Efficiency()


def test_errors_that_are_said_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "validation" / "accuracy.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" *%") for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    printed = {row[0]: (float(row[2]), float(row[4])) for row in rows if len(row) == 6 and "all" in row[0]}
    for cost, begins in (("auto", ""), ("roofline", "`--cost roofline`, ")):
        for kind, what in ((DENSE, "dense"), (EXPERTS, "with experts")):
            assert ERRORS[cost][kind] == pytest.approx(printed[f"{begins}all {what}"], abs=0.5)
