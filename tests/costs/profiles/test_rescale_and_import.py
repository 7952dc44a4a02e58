"""Profiles from datasheets, from others' measurements, and carried to other models and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagesim.costs import Efficiency, IterationShape, Profiled, Roofline, step_shape
from pagesim.costs.profiles import (
    LAUNCH_S,
    Launching,
    Profile,
    analytic_profile,
    bundled_profile,
    import_vidur,
    rescale,
)
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

OPT, LLAMA = model("opt-13b"), model("llama-2-7b")
A40, A80, H200 = gpu("a100-40gb"), gpu("a100-80gb"), gpu("h200")


def decode(sequences: int, mean: int) -> IterationShape:
    return step_shape(sequences, sequences * mean)


PLAIN = Efficiency(flops=0.8, hbm=0.8, kv=0.65, prompts=0.8, launch_s=0)
"""Rules of thumb, without what launches take: as an analytic profile has them."""


@pytest.mark.parametrize("shape", [decode(1, 300), decode(32, 500), decode(200, 800)])
def test_an_analytic_profile_decodes_as_a_roofline_without_launches_does(shape) -> None:
    profile = Profiled(analytic_profile(A40, OPT), OPT)
    assert profile.iteration(shape) == pytest.approx(
        Roofline(OPT, A40, efficiency=PLAIN).iteration(shape), rel=0.01
    )


def test_an_analytic_profile_knows_that_only_the_last_token_of_a_prompt_needs_the_head() -> None:
    profile, roofline = Profiled(analytic_profile(A40, OPT), OPT), Roofline(OPT, A40, efficiency=PLAIN)
    prompt = step_shape(0, 0, prompt=2048)
    # For one token the weights of the head are read, and that is longer than computing it.
    assert profile.parts(prompt)["LM head"] == pytest.approx(
        1e12 * OPT.lm_head_bytes / (0.8 * A40.hbm_bytes_per_s), rel=1e-6
    )
    # The roofline does not count writes to the cache, which read keys and values once.
    written = 2 * 2048 * OPT.kv_bytes_per_token("fp16", 1) / (0.8 * A40.hbm_bytes_per_s)
    assert profile.iteration(prompt) - roofline.iteration(prompt) == pytest.approx(1e12 * written, rel=0.02)


def test_an_analytic_head_computes_where_many_sequences_need_it() -> None:
    # A product of 50,272 by 5120 for each, at 0.8 of 312 TFLOP/s.
    head = analytic_profile(A40, OPT).terms.head
    assert head(4096) == pytest.approx(2 * 50_272 * 5120 * 4096 / (0.8 * 312e12), rel=1e-3)


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
    assert carried.terms.decode[16](7, 900) == pytest.approx(there.terms.decode[16](7, 900))
    assert carried.terms.prefill[16](512, 700) == pytest.approx(there.terms.prefill[16](512, 700))
    assert carried.terms.swap_in[16](100) == pytest.approx(there.terms.swap_in[16](100))
    assert "rescaled from mine" in carried.notes[-1]
    assert carried.samples == ()


@pytest.mark.parametrize("tp", [4, 8])
def test_carried_to_more_gpus_linear_layers_take_what_was_measured_there(tp) -> None:
    one, there = bundled_profile("llama-2-7b-a100-tp1"), bundled_profile(f"llama-2-7b-a100-tp{tp}").terms
    carried = rescale(one, LLAMA, A80, model=LLAMA, gpu=A80, tp=tp, name="new").terms
    shares = rescale(one, LLAMA, A80, model=LLAMA, gpu=A80, tp=tp, name="new", launch_s=0.0).terms
    for tokens in (1, 8, 32, 64, 128, 512, 1024, 2048, 4096):
        assert carried.linear(tokens) == pytest.approx(there.linear(tokens), rel=0.08)
    for tokens in (1, 8, 32, 64):
        assert shares.linear(tokens) < 0.8 * there.linear(tokens), "a share of the roof has no launches"


def test_any_division_can_be_carried_to_any_that_the_model_allows() -> None:
    one = bundled_profile("llama-2-7b-a100-tp1")
    two = rescale(one, LLAMA, A80, model=LLAMA, gpu=H200, tp=2, name="two")
    assert Profiled(two, LLAMA, tp=2).iteration(decode(8, 500)) < Profiled(one, LLAMA).iteration(
        decode(8, 500)
    )
    # A launch a layer is not divided; of the rest each GPU has half, and reads it so much faster.
    launches, share = LLAMA.layers * LAUNCH_S, A80.hbm_bytes_per_s / H200.hbm_bytes_per_s / 2
    whole, half = (each.terms.decode[16](64, 16384) for each in (one, two))
    assert half == pytest.approx(launches + share * (whole - launches))
    # Two all-reduces in each of 32 layers: 5 us, and 4096 elements of 2 bytes at 450 GB/s.
    assert two.terms.all_reduce is not None
    assert two.terms.all_reduce(1000) == pytest.approx(64 * (5e-6 + 1000 * 4096 * 2 / 450e9), rel=1e-3)
    with pytest.raises(PagesimError, match="tp is 3"):
        rescale(one, LLAMA, A80, model=LLAMA, gpu=H200, tp=3, name="three")
    back = rescale(
        bundled_profile("llama-2-7b-a100-tp4"), LLAMA, A80, model=LLAMA, gpu=A80, tp=1, name="back"
    )
    assert back.terms.all_reduce is None
    assert back.terms.linear(32) == pytest.approx(one.terms.linear(32), rel=0.05)


def test_launches_go_with_the_layers_and_are_no_shorter_on_a_faster_gpu() -> None:
    one = bundled_profile("llama-2-7b-a100-tp1")
    for gpu_there, faster in ((A80, 1.0), (H200, A80.hbm_bytes_per_s / H200.hbm_bytes_per_s)):
        there = rescale(one, LLAMA, A80, model=LLAMA, gpu=gpu_there, name="new").terms
        launches = 9 * LLAMA.layers * LAUNCH_S
        assert there.linear(1) - launches == pytest.approx(faster * (one.terms.linear(1) - launches))


def test_a_term_at_its_bound_has_no_launches_to_set_apart(analytic: Profile) -> None:
    """A datasheet's attention reaches 0.65 of the bandwidth, in prompts 0.8 of the operations."""

    def at_bounds(profile: Profile) -> Profile:
        terms = profile.terms
        update = {
            "decode": {size: each.scaled(0.65) for size, each in terms.decode.items()},
            "prefill": {size: each.scaled(0.8) for size, each in terms.prefill.items()},
        }
        origins = {**profile.origins, "decode": "imported", "prefill": "imported"}
        return profile.model_copy(
            update={"kind": "imported", "origins": origins, "terms": terms.model_copy(update=update)}
        )

    here = at_bounds(analytic)
    there = at_bounds(analytic_profile(H200, OPT, block_sizes=(1, 16))).terms
    carried = rescale(here, OPT, A40, model=OPT, gpu=H200, name="new").terms
    assert carried.decode[16](64, 1000) == pytest.approx(there.decode[16](64, 1000))
    assert carried.prefill[16](512, 700) == pytest.approx(there.prefill[16](512, 700))


def test_what_the_host_launches_goes_with_the_layers(analytic: Profile) -> None:
    launching = Launching(decode_s=1e-3, prompt_s=2e-3, mixed_s=3e-3, unless_graphed=True)
    here = analytic.model_copy(update={"terms": analytic.terms.model_copy(update={"launching": launching})})
    # OPT-13B has 40 layers, Llama-2-7B 32.
    there = rescale(here, OPT, A40, model=LLAMA, gpu=H200, name="new").terms.launching
    assert (there.decode_s, there.prompt_s, there.mixed_s) == pytest.approx((8e-4, 1.6e-3, 2.4e-3))
    assert there.unless_graphed


def test_an_engines_overhead_does_not_grow_with_the_layers() -> None:
    one = bundled_profile("llama-2-7b-a100-tp1").with_overhead(5e-3, 1e-4)
    opt = rescale(one, LLAMA, A80, model=OPT, gpu=H200, name="new")
    assert opt.terms.overhead == one.terms.overhead


def test_all_reduces_of_another_link_are_the_datasheets() -> None:
    eight = bundled_profile("llama-2-7b-a100-tp8")
    h200 = rescale(eight, LLAMA, A80, model=LLAMA, gpu=H200, name="new")
    assert h200.terms.all_reduce == analytic_profile(H200, LLAMA, tp=8).terms.all_reduce
    assert h200.origins["all_reduce"] == "datasheet"
    assert "all_reduce" not in h200.errors
    assert "all-reduces are the datasheet's of 8 h200" in h200.notes[-1]
    same_link = rescale(eight, LLAMA, A80, model=LLAMA, gpu=A40, name="new")
    assert same_link.terms.all_reduce == eight.terms.all_reduce
    assert same_link.origins["all_reduce"] == "rescaled"
    four = rescale(eight, LLAMA, A80, model=LLAMA, gpu=A80, tp=4, name="new")
    assert four.origins["all_reduce"] == "datasheet", "one more hop is another time"


def test_a_rescaled_profile_is_not_rescaled_again(measured: Profile) -> None:
    once = rescale(measured, OPT, A40, model=OPT, gpu=H200, name="once")
    with pytest.raises(PagesimError, match="rescale what it was made from"):
        rescale(once, OPT, H200, model=LLAMA, gpu=H200, name="twice")


def test_an_import_adds_up_a_models_layers(vidur_files) -> None:
    linear, attention, _ = vidur_files()
    profile = import_vidur(linear, attention, model=LLAMA, gpu=A80, name="x", source="a test")
    # Nine operators in each of 32 layers, and the embedding.
    assert profile.terms.linear(256) == pytest.approx((32 * 9 + 1) * (0.01 + 0.256) * 1e-3)
    assert profile.terms.decode[16](4, 1025) == pytest.approx(32e-3 * (0.01 + 1e-5 * 4 * 1025), rel=1e-5)
    assert profile.terms.prefill[16](512, 513 / 2) == pytest.approx(
        32e-3 * (0.02 + 1e-7 * 512 * 513 / 2), rel=1e-5
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
    assert profile.terms.all_reduce(256) == pytest.approx(64e-3 * (0.02 + 1e-8 * 256 * 8192), rel=1e-5)
    # A launch of 4 us a layer stays, and half of the rest.
    whole, launches = 32e-3 * (0.01 + 1e-5 * 4 * 1025), 32 * 4e-6
    assert profile.terms.decode[16](4, 1025) == pytest.approx(launches + (whole - launches) / 2, rel=1e-5)
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


def test_the_published_timings_are_nearer_as_tables_than_by_curves_and_formulas(shared: Path) -> None:
    folder = shared / "data" / "profiles"
    made = import_vidur(
        folder / "a100_llama2_7b_mlp.csv",
        folder / "a800_llama2_7b_attention.csv",
        model=LLAMA,
        gpu=A80,
        name="llama-2-7b-a100-tp1",
        source="Vidur",
    )
    # Mean errors of curves and formulas that were fitted to the same timings.
    before = {"linear": 0.029, "decode": 0.046, "prefill": 0.134, "write": 0.031}
    for term, error in before.items():
        assert made.errors[term].points > 50
        assert made.errors[term].mean < error
    assert made.errors["decode"].mean < 0.015
    assert made.errors["prefill"].mean < 0.06
