"""The GPUs that pagesim knows by name, number by number."""

from __future__ import annotations

from pagesim.hardware.gpu_spec import GIB, GpuSpec, Link

_PCIE4 = Link(
    25e9, 10e-6, "PCIe 4.0 x16: 31.5 GB/s on the wire, about 25 in large pinned copies; typical latency"
)
_PCIE5 = Link(
    51e9, 10e-6, "PCIe 5.0 x16: 63 GB/s on the wire, about 51 in large pinned copies; typical latency"
)
_PCIE6 = Link(
    102e9,
    10e-6,
    "PCIe 6.0 x16: 126 GB/s on the wire, taken at the share that PCIe 5.0 gives; typical latency",
)
_C2C = Link(225e9, 5e-6, "NVLink-C2C: 900 GB/s both ways together for two GPUs, peak; latency typical")
_NVLINK3 = Link(300e9, 5e-6, "NVLink 3: 600 GB/s both ways together, peak; latency typical")
_NVLINK4 = Link(450e9, 5e-6, "NVLink 4: 900 GB/s both ways together, peak; latency typical")
_NVLINK5 = Link(900e9, 5e-6, "NVLink 5: 1,800 GB/s both ways together, peak; latency typical")
_INFINITY_3 = Link(
    448e9, 5e-6, "Infinity Fabric: 64 GB/s each way to each of seven GPUs, together, peak; latency typical"
)
_INFINITY_4 = Link(
    537.6e9,
    5e-6,
    "Infinity Fabric: 76.8 GB/s each way to each of seven GPUs, together, peak; latency typical",
)
_THROUGH_PCIE4 = Link(
    25e9, 20e-6, "no NVLink: PCIe 4.0 x16, at best the rate of the host link; typical latency"
)
_THROUGH_PCIE5 = Link(
    51e9, 20e-6, "no NVLink: PCIe 5.0 x16, at best the rate of the host link; typical latency"
)

SHEETS: tuple[GpuSpec, ...] = (
    GpuSpec(
        name="a100-40gb",
        memory_bytes=42_298_834_944,
        nominal_bytes=40 * GIB,
        capability=80,
        listed_mib=40960,
        fp16_flops=312e12,
        fp8_flops=None,
        hbm_bytes_per_s=1555e9,
        host=_PCIE4,
        peer=_NVLINK3,
        source="NVIDIA A100 datasheet (SXM4 40GB); memory from deviceQuery, 39.39 GiB",
    ),
    # Drivers report 79.15 to 79.26 GiB. The paper's 3,757 blocks of OPT-175B follow from 79.18.
    GpuSpec(
        name="a100-80gb",
        memory_bytes=int(79.18 * GIB),
        nominal_bytes=80 * GIB,
        capability=80,
        listed_mib=81920,
        fp16_flops=312e12,
        fp8_flops=None,
        hbm_bytes_per_s=2039e9,
        host=_PCIE4,
        peer=_NVLINK3,
        source="NVIDIA A100 datasheet (SXM4 80GB); memory 79.18 GiB in PyTorch",
    ),
    GpuSpec(
        name="h100",
        memory_bytes=85_045_477_376,
        nominal_bytes=80 * GIB,
        capability=90,
        listed_mib=81559,
        fp16_flops=989.4e12,
        fp8_flops=1978.9e12,
        hbm_bytes_per_s=3.35e12,
        host=_PCIE5,
        peer=_NVLINK4,
        source="NVIDIA H100 datasheet (SXM5 80GB), half its rates with sparsity; memory from deviceQuery",
    ),
    GpuSpec(
        name="h200",
        memory_bytes=int(139.81 * GIB),
        nominal_bytes=141_000_000_000,
        capability=90,
        listed_mib=143771,
        fp16_flops=989.4e12,
        fp8_flops=1978.9e12,
        hbm_bytes_per_s=4.8e12,
        host=_PCIE5,
        peer=_NVLINK4,
        source="NVIDIA H200 datasheet (SXM), half its rates with sparsity; memory 139.81 GiB in PyTorch",
    ),
    GpuSpec(
        name="l4",
        memory_bytes=23_612_293_120,
        nominal_bytes=24 * GIB,
        capability=89,
        listed_mib=23034,
        fp16_flops=121e12,
        fp8_flops=242.5e12,
        hbm_bytes_per_s=300e9,
        host=_PCIE4,
        peer=_THROUGH_PCIE4,
        source="NVIDIA L4 datasheet, half of its rates with sparsity; memory from deviceQuery",
    ),
    GpuSpec(
        name="rtx-4090",
        memory_bytes=25_250_627_584,
        nominal_bytes=24 * GIB,
        capability=89,
        listed_mib=24564,
        fp16_flops=165.2e12,
        fp8_flops=330.3e12,
        hbm_bytes_per_s=1008e9,
        host=_PCIE4,
        peer=_THROUGH_PCIE4,
        source="NVIDIA Ada whitepaper, appendix A (accumulating in fp32); memory in PyTorch 2.10",
    ),
    GpuSpec(
        name="rtx-3090",
        memory_bytes=int(23.58 * GIB),
        nominal_bytes=24 * GIB,
        capability=86,
        listed_mib=24576,
        fp16_flops=71.2e12,
        fp8_flops=None,
        hbm_bytes_per_s=936.2e9,
        host=_PCIE4,
        peer=_THROUGH_PCIE4,
        source="NVIDIA GA102 whitepaper (accumulating in fp32); memory 23.58 GiB in a log of vLLM",
    ),
    # nvidia-smi says 46,068 MiB, and PyTorch sees 44.4 to 44.5 GiB of them.
    GpuSpec(
        name="l40s",
        memory_bytes=int(44.42 * GIB),
        nominal_bytes=48 * GIB,
        capability=89,
        listed_mib=46068,
        fp16_flops=362.05e12,
        fp8_flops=724.1e12,  # the datasheet rounds it to 733
        hbm_bytes_per_s=864e9,
        host=_PCIE4,
        peer=_THROUGH_PCIE4,
        source="NVIDIA L40S datasheet, half of its rates with sparsity; memory 44.42 GiB in logs of vLLM",
    ),
    GpuSpec(
        name="h20",
        memory_bytes=97_871 << 20,
        nominal_bytes=96 * GIB,
        capability=90,
        listed_mib=97871,
        fp16_flops=148e12,
        fp8_flops=296e12,
        hbm_bytes_per_s=4.0e12,
        host=_PCIE5,
        peer=_NVLINK4,
        source="NVIDIA H20 datasheet; memory 97,871 MiB in nvidia-smi, of which CUDA gives some 0.4 GiB less",
    ),
    GpuSpec(
        name="b200",
        memory_bytes=int(178.35 * GIB),
        nominal_bytes=192 * GIB,
        capability=100,
        listed_mib=183359,
        fp16_flops=2250e12,
        fp8_flops=4500e12,
        fp4_flops=9000e12,
        hbm_bytes_per_s=8.0e12,
        host=_PCIE5,
        peer=_NVLINK5,
        source="NVIDIA DGX B200 datasheet: an eighth, half its sparse rates; memory 178.35 GiB in PyTorch",
    ),
    GpuSpec(
        name="gb200",
        memory_bytes=int(184.31 * GIB),
        nominal_bytes=192 * GIB,
        capability=100,
        listed_mib=189471,
        fp16_flops=2500e12,
        fp8_flops=5000e12,
        fp4_flops=10000e12,
        hbm_bytes_per_s=8.0e12,
        host=_C2C,
        peer=_NVLINK5,
        source="NVIDIA GB200 NVL72 datasheet: a GPU, half its sparse rates; memory 184.31 GiB in PyTorch",
    ),
    GpuSpec(
        name="b300",
        memory_bytes=int(267.69 * GIB),
        nominal_bytes=288 * GIB,
        capability=103,
        listed_mib=275040,
        fp16_flops=2250e12,
        fp8_flops=4500e12,
        fp4_flops=13500e12,
        hbm_bytes_per_s=8.0e12,
        host=_PCIE6,
        peer=_NVLINK5,
        source="NVIDIA HGX B300 datasheet: an eighth, half its sparse rates; memory 267.69 GiB in PyTorch",
    ),
    GpuSpec(
        name="mi300x",
        memory_bytes=int(191.98 * GIB),
        nominal_bytes=192 * GIB,
        capability=0,
        fp16_flops=1307.4e12,
        fp8_flops=2614.9e12,
        hbm_bytes_per_s=5.3e12,
        host=_PCIE5,
        peer=_INFINITY_3,
        source="AMD Instinct MI300X datasheet; memory 191.98 GiB in PyTorch",
    ),
    GpuSpec(
        name="mi355x",
        memory_bytes=int(287.98 * GIB),
        nominal_bytes=288 * GIB,
        capability=0,
        fp16_flops=2516.6e12,
        fp8_flops=5033.2e12,
        hbm_bytes_per_s=8.0e12,
        host=_PCIE5,
        peer=_INFINITY_4,
        source="AMD Instinct MI355X datasheet; memory 287.98 GiB in PyTorch",
    ),
    GpuSpec(
        name="a10g",
        memory_bytes=22_587 << 20,
        nominal_bytes=24 * GIB,
        capability=86,
        listed_mib=23028,
        fp16_flops=70e12,
        fp8_flops=None,
        hbm_bytes_per_s=600e9,
        host=_PCIE4,
        peer=_THROUGH_PCIE4,
        source="NVIDIA A10G datasheet, half of its rates with sparsity; memory 22,587 MiB in PyTorch",
    ),
    # GeForce runs at half rate where it accumulates in fp32, RTX PRO at the full one.
    GpuSpec(
        name="rtx-5090",
        memory_bytes=int(31.36 * GIB),
        nominal_bytes=32 * GIB,
        capability=120,
        listed_mib=32607,
        fp16_flops=209.5e12,
        fp8_flops=419e12,
        fp4_flops=1676e12,
        hbm_bytes_per_s=1792e9,
        host=_PCIE5,
        peer=_THROUGH_PCIE5,
        source="NVIDIA RTX Blackwell whitepaper (accumulating in fp32); memory 31.36 GiB in PyTorch",
    ),
    GpuSpec(
        name="rtx-pro-6000",
        memory_bytes=int(94.97 * GIB),
        nominal_bytes=96 * GIB,
        capability=120,
        listed_mib=97887,
        fp16_flops=503.8e12,
        fp8_flops=1007.6e12,
        fp4_flops=2015.2e12,
        hbm_bytes_per_s=1792e9,
        host=_PCIE5,
        peer=_THROUGH_PCIE5,
        source="NVIDIA RTX PRO 6000 Blackwell, Workstation Edition: 188 SMs at 2,617 MHz; memory in PyTorch",
    ),
)
