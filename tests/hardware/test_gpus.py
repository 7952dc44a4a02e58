"""GPUs by name."""

import pytest

from pagesim.errors import PagesimError
from pagesim.hardware import gpu, gpus


def test_every_gpu_is_found_by_its_name_and_says_where_its_numbers_stand() -> None:
    names = ["a100-40gb", "a100-80gb", "h100", "h200", "l4", "rtx-4090", "rtx-3090", "l40s"]
    names += ["h20", "b200", "gb200", "b300", "mi300x", "mi355x", "a10g", "rtx-5090", "rtx-pro-6000"]
    names += ["gb10", "l40", "rtx-3060", "rtx-3080", "rtx-5060-ti", "rtx-5070-ti", "rtx-a5000", "rtx-a6000"]
    names += ["v100", "r9700", "h100-pcie", "h100-nvl", "gh200", "h20-3e", "rtx-4090-d", "gb300"]
    assert [spec.name for spec in gpus()] == names
    for spec in gpus():
        assert gpu(spec.name.upper()) is spec
        assert spec.source
        assert spec.host.note
        assert spec.peer.note


def test_a_driver_reports_less_memory_than_the_name_promises_but_not_by_much() -> None:
    for spec in gpus():
        if spec.name not in ("h200", "h20-3e"):  # named after decimal gigabytes
            assert 0.9 * spec.nominal_bytes < spec.memory_bytes < spec.nominal_bytes
    assert gpu("h200").memory_bytes > gpu("h200").nominal_bytes


def test_fp8_doubles_the_peak_where_it_exists() -> None:
    for spec in gpus():
        if spec.fp8_flops is not None:
            assert spec.fp8_flops == pytest.approx(2 * spec.fp16_flops, rel=0.01)
    assert gpu("a100-40gb").fp8_flops is None


def test_a_misspelt_gpu_is_answered_with_names_like_it() -> None:
    with pytest.raises(PagesimError, match=r"no GPU is named 'a100'; did you mean a100-40gb or a100-80gb\?$"):
        gpu("a100")
    with pytest.raises(PagesimError, match=r"no GPU is named 'h201'; did you mean .*h200"):
        gpu("h201")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        # As nvidia-smi and rocm-smi print them, and as people write them.
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("rtx5090", "rtx-5090"),
        ("RTX_PRO_6000", "rtx-pro-6000"),
        ("A100 80GB", "a100-80gb"),
    ],
)
def test_a_gpu_may_be_written_with_its_vendor_and_other_hyphens(written: str, name: str) -> None:
    assert gpu(written).name == name


def test_a_newer_gpu_of_a_line_has_more_memory_that_is_faster() -> None:
    for line in (
        ("h100", "h200", "b200", "b300"),
        ("mi300x", "mi355x"),
        ("rtx-3090", "rtx-4090", "rtx-5090"),
    ):
        made = [gpu(name) for name in line]
        assert [spec.hbm_bytes_per_s for spec in made] == sorted(spec.hbm_bytes_per_s for spec in made)
        assert [spec.nominal_bytes for spec in made] == sorted(spec.nominal_bytes for spec in made)
