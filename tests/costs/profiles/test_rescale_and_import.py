"""Profiles from datasheets, from others' measurements, and carried to other models and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagesim.costs import Efficiency, IterationShape, Profiled, Roofline
from pagesim.costs.profiles import Profile, analytic_profile, bundled_profile, import_vidur, rescale
from pagesim.costs.specs import gpu, model
from pagesim.errors import PagesimError

OPT, LLAMA = model("opt-13b"), model("llama-2-7b")
A40, A80, H200 = gpu("a100-40gb"), gpu("a100-80gb"), gpu("h200")


def decode(sequences: int, mean: int) -> IterationShape:
    context = sequences * mean
    return IterationShape(sequences, sequences, context, context, 0, 0, 0, 0, sequences, sequences)


def prompt(tokens: int) -> IterationShape:
    return IterationShape(tokens, tokens, tokens, 0, tokens * (tokens + 1) // 2, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("shape", [decode(1, 300), decode(32, 500), decode(200, 800)])
def test_an_analytic_profile_decodes_as_the_roofline_does(shape) -> None:
    profile = Profiled(analytic_profile(A40, OPT), OPT)
    assert profile.iteration(shape) == pytest.approx(Roofline(OPT, A40).iteration(shape), rel=0.01)


def test_an_analytic_profile_knows_that_only_the_last_token_of_a_prompt_needs_the_head() -> None:
    profile, roofline = Profiled(analytic_profile(A40, OPT), OPT), Roofline(OPT, A40, efficiency=Efficiency())
    head = 2048 * OPT.lm_head_flops_per_token / (0.8 * A40.fp16_flops)
    terms = analytic_profile(A40, OPT).terms
    saved = (roofline.iteration(prompt(2048)) - profile.iteration(prompt(2048))) / 1e12
    # The roofline does not count writes to the cache.
    assert saved == pytest.approx(head - terms.head(1) - terms.write(2048), rel=0.02)


def test_an_analytic_profile_says_so(analytic: Profile) -> None:
    assert analytic.kind == "analytic"
    assert set(analytic.origins.values()) == {"datasheet"}
    assert "nothing was measured" in analytic.sentence


def test_a_profile_carried_to_where_it_was_made_stays_as_it_is(measured: Profile) -> None:
    same = rescale(measured, OPT, A40, model=OPT, gpu=A40, name="same")
    assert same.terms == measured.terms
    assert same.kind == "rescaled"
    assert set(same.origins.values()) == {"datasheet"}


def test_rescaling_keeps_the_share_of_the_roof(measured: Profile) -> None:
    carried = rescale(measured, OPT, A40, model=LLAMA, gpu=H200, name="new")
    there = analytic_profile(H200, LLAMA, block_sizes=(1, 16))
    for size in (1, 64, 512, 4096):
        assert carried.terms.linear(size) == pytest.approx(there.terms.linear(size), rel=1e-6)
    assert carried.terms.decode[16].context_s == pytest.approx(there.terms.decode[16].context_s)
    assert carried.terms.prefill[16].pair_s == pytest.approx(there.terms.prefill[16].pair_s)
    assert carried.terms.swap_in[16](100) == pytest.approx(there.terms.swap_in[16](100))
    assert "rescaled from mine" in carried.notes[-1]
    assert carried.samples == ()


def test_a_rescaled_profile_is_not_rescaled_again(measured: Profile) -> None:
    once = rescale(measured, OPT, A40, model=OPT, gpu=H200, name="once")
    with pytest.raises(PagesimError, match="rescale what it was made from"):
        rescale(once, OPT, H200, model=LLAMA, gpu=H200, name="twice")


def test_an_import_adds_up_a_models_layers(vidur_files) -> None:
    linear, attention, _ = vidur_files()
    profile = import_vidur(linear, attention, model=LLAMA, gpu=A80, name="x", source="a test")
    # Nine operators in each of 32 layers, and the embedding.
    assert profile.terms.linear(256) == pytest.approx((32 * 9 + 1) * (0.01 + 0.256) * 1e-3)
    assert profile.terms.decode[16](4, 4 * 1025) == pytest.approx(32e-3 * (0.01 + 1e-5 * 4 * 1025), rel=1e-6)
    assert profile.terms.prefill[16](512, 512 * 513 // 2) == pytest.approx(
        32e-3 * (0.02 + 1e-7 * 512 * 513 / 2), rel=1e-6
    )
    assert profile.terms.write(16) == pytest.approx(32e-3 * 0.004), "prompts' writes are left out"
    assert profile.origins["linear"] == "imported"
    assert profile.origins["swap_in"] == "datasheet"
    assert profile.samples == ()
    assert profile.errors["decode"].points > 0


def test_with_tensor_parallelism_all_reduces_come_in_and_attention_is_shared(vidur_files) -> None:
    linear, attention, reduces = vidur_files(num_tensor_parallel_workers=2)
    profile = import_vidur(linear, attention, reduces, model=LLAMA, gpu=A80, tp=2, name="x", source="a test")
    assert profile.terms.all_reduce is not None
    # Two a layer.
    assert profile.terms.all_reduce(256) == pytest.approx(64e-3 * (0.02 + 1e-8 * 256 * 8192))
    assert profile.terms.decode[16](4, 4 * 1025) == pytest.approx(16e-3 * (0.01 + 1e-5 * 4 * 1025), rel=1e-6)
    with pytest.raises(PagesimError, match="a file of all-reduces is needed"):
        import_vidur(linear, attention, model=LLAMA, gpu=A80, tp=2, name="x", source="a test")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda text: text.replace("mlp_act", "mlp_fact"), "has no column time_stats.mlp_act.median"),
        (lambda text: text.replace("4096", "5120"), "holds no row with n_embd 4096"),
        (lambda text: "", "is no CSV that can be read"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(break_it, said, vidur_files) -> None:
    linear, attention, _ = vidur_files()
    linear.write_text(break_it(linear.read_text()))
    with pytest.raises(PagesimError, match=said):
        import_vidur(linear, attention, model=LLAMA, gpu=A80, name="x", source="a test")


def test_the_boxed_import_is_what_its_command_gives(shared: Path) -> None:
    folder = shared / "data" / "profiles"
    name = "llama-2-7b-a100-tp1"
    made = import_vidur(
        folder / "a100_llama2_7b_mlp.csv",
        folder / "a800_llama2_7b_attention.csv",
        model=LLAMA,
        gpu=A80,
        name=name,
        source=str(bundled_profile(name).machine["source"]),
    )
    assert made.errors["linear"].mean < 0.05
    assert made.errors["decode"].mean < 0.05
    bundled = bundled_profile(name)
    assert made.terms.linear.seconds == pytest.approx(bundled.terms.linear.seconds, rel=1e-6)
    assert made.terms.decode[16].context_s == pytest.approx(bundled.terms.decode[16].context_s, rel=1e-6)
    carried = rescale(made, LLAMA, A80, model=OPT, gpu=A40, name="opt-13b-a100-40gb-rescaled")
    assert carried.terms.linear.seconds == pytest.approx(
        bundled_profile("opt-13b-a100-40gb-rescaled").terms.linear.seconds, rel=1e-6
    )
