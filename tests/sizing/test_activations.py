"""What is left for the cache: the terms of vLLM's trial run, and what its flags give back."""

from __future__ import annotations

from statistics import median

import pytest

from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.sizing import MemoryOptions, divide
from pagesim.sizing.activations import OF_ENCODER, Images, peak, sampler_buffers
from pagesim.sizing.division import OTHER_BYTES, POSTED
from tests.pages import module_of

QWEN = "qwen3.5-27b"
LOADED, OFF = Images(), Images(tower=False)


def of(name: str, images: Images = LOADED, **how):
    return divide(model(name), gpu("h100"), MemoryOptions(max_num_batched_tokens=8192, images=images, **how))


def test_the_largest_image_of_qwen_is_tried_on_with_65_536_patches() -> None:
    # 1.89 GiB: pixels in fp32 and bf16, residual and norm, both sides of the MLP of a width of 4,304.
    tensors = 65536 * (6 * 1536 + 2 * (2 * 1152 + 2 * 4304))
    assert of(QWEN).activations == int(OF_ENCODER * tensors)
    assert tensors / GIB == pytest.approx(1.89, abs=0.01)


def test_without_a_tower_weights_and_the_trial_are_given_back() -> None:
    with_tower, without = of(QWEN), of(QWEN, OFF)
    tower = model(QWEN).tower + model(QWEN).tower_whole
    assert with_tower.weights - without.weights == 2 * tower
    assert without.activations == of(QWEN, Images(tried=False)).activations < with_tower.activations
    assert of(QWEN, Images(tried=False)).weights == with_tower.weights


def test_smaller_images_take_less_until_the_layers_take_most() -> None:
    sizes = [of(QWEN, Images(max_pixels=pixels)).activations for pixels in (1 << 24, 1 << 23, 1 << 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == of(QWEN).activations
    # The layers then take most, beside what the encoder gave for as many small images as a batch holds.
    layers = of(QWEN, Images(tried=False)).activations
    assert sizes[2] == layers + 2 * 8192 * model(QWEN).hidden


def test_a_sampler_with_buffers_keeps_counts_and_a_bit_of_each_token() -> None:
    spec = model("qwen3-8b")
    assert sampler_buffers(spec, 1024) == 1024 * 151936 * 4 + 1024 * 151936 // 8
    assert sampler_buffers(spec, 1024) / GIB == pytest.approx(0.60, abs=0.005)
    kept = of("qwen3-8b", max_num_seqs=1024, sampler_buffers=True)
    plain = of("qwen3-8b", max_num_seqs=1024)
    assert kept.other - plain.other == sampler_buffers(spec, 1024)
    assert kept.activations == 14 * 1024 * 151936
    assert plain.activations == 10 * 1024 * 151936


def test_experts_take_what_their_tokens_take() -> None:
    spec = model("qwen3-30b-a3b")
    few, many = (peak(spec, 1, tokens, 1, 14, LOADED) for tokens in (2048, 4096))
    assert many == pytest.approx(2 * few, rel=1e-6)
    assert peak(spec, 2, 4096, 1, 14, LOADED) <= many


def test_gpus_that_share_a_model_over_nvlink_keep_buffers_on_hopper_alone() -> None:
    def other(device: str, tp: int) -> int:
        return divide(model("llama-3.1-8b"), gpu(device), tp=tp).other

    assert other("h100", 2) - other("h100", 1) > 0.8 * GIB
    assert other("a100-80gb", 2) == other("a100-80gb", 1)
    assert other("rtx-5090", 2) == other("rtx-5090", 1)


def test_the_page_has_the_errors_that_a_plan_says() -> None:
    page = module_of("docs/make_plan.py")
    assert {images: page.errors(images) for images in (False, True)} == POSTED
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python docs/make_plan.py"
    assert POSTED[False][1] <= 0.35
    for log in page.logs(images=False):
        assert abs(log.error) < 1.5 or log.row["cause"]


def test_the_one_constant_that_was_chosen_is_the_median_of_what_the_rest_of_the_estimate_lacks() -> None:
    lacks = [OTHER_BYTES / GIB + log.error for log in module_of("docs/make_plan.py").logs(images=False)]
    assert abs(OTHER_BYTES / GIB - median(lacks)) < 0.05
