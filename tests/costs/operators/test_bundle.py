"""The profiles of operators that are bundled: what is there, what it takes, and that it can be made again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagesim.costs import Profiled, step_shape
from pagesim.costs.engines import EngineTime
from pagesim.costs.operators import bundle as room
from pagesim.costs.operators.assemble import GPUS
from pagesim.costs.operators.dtypes import in_types
from pagesim.costs.profiles import bundled_names, bundled_profile, find_profile
from pagesim.costs.profiles.bundled import DATA
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import model

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(
    rf"({'|'.join(re.escape(name) for name, _ in room.MODELS)})-({'|'.join(GPUS.values())})"
    r"-tp(\d+)(?:-(fp8))?"
)
NONE = EngineTime()


def of_operators() -> list[str]:
    return [name for name in bundled_names() if "release" in bundled_profile(name).machine]


def test_the_box_is_small():
    files = list(DATA.glob("*.json"))
    assert len(files) <= 150
    assert sum(file.stat().st_size for file in files) <= 4_000_000


def test_each_is_of_a_common_model_that_fits_and_has_every_term_timed():
    assert len(of_operators()) > 100
    for name in of_operators():
        found = NAMED.fullmatch(name)
        assert found is not None, name
        profile = bundled_profile(name)
        assert (profile.model.name, profile.gpu, profile.tp) == (found[1], found[2], int(found[3]))
        spec = in_types(model(found[1]), found[4], None)
        assert room.fits(spec, gpu(found[2]), profile.tp)
        assert profile.dtype == spec.weights_in_words
        assert {term for term, origin in profile.origins.items() if origin != "imported"} == {
            *("copy", "swap_out", "swap_in")
        }
        assert profile.machine["release"] in ("vllm 0.24.0", "vllm 0.14.0")
        assert "© NVIDIA, Apache-2.0, changed" in profile.machine["source"]
        assert {"linear", "head", "decode", "prefill"} <= set(profile.errors)
        assert all(error.mean < 0.09 for error in profile.errors.values())


def test_the_page_lists_them_all():
    page = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    heads = ("a100-80gb", "h100", "h200", "b200")
    listed = set()
    for name, weights in room.MODELS:
        title = name if weights is None else f"{name}, {weights}"
        row = re.search(rf"^\| {re.escape(title)} \|(.*)\|$", page, re.MULTILINE)
        assert row is not None, title
        suffix = "" if weights is None else f"-{weights}"
        for chip, cell in zip(heads, row[1].split("|"), strict=True):
            degrees = cell.split("(")[0]
            listed |= {f"{name}-{chip}-tp{tp}{suffix}" for tp in re.findall(r"\d+", degrees)}
    assert listed == set(of_operators())


@pytest.mark.parametrize("name", ["llama-3.1-8b-h100-tp1", "gpt-oss-120b-b200-tp2", "deepseek-v3-h200-tp8"])
def test_more_work_takes_longer_and_more_gpus_are_faster(name: str):
    profile = bundled_profile(name)
    spec = model(profile.model.name)
    cost = Profiled(profile, spec, tp=profile.tp, kv_dtype="bf16", engine=NONE)
    decode = [cost.iteration(step_shape(batch, batch * 500)) for batch in (1, 8, 64, 256)]
    assert decode == sorted(decode)
    prompts = [cost.iteration(step_shape(0, 0, prompt=tokens)) for tokens in (64, 512, 2048, 8192)]
    assert prompts == sorted(prompts)
    more = name.replace(f"tp{profile.tp}", f"tp{2 * profile.tp}")
    if more in bundled_names():
        other = Profiled(bundled_profile(more), spec, tp=2 * profile.tp, kv_dtype="bf16", engine=NONE)
        assert other.iteration(step_shape(0, 0, prompt=8192)) < prompts[-1]


def test_a_step_of_a_known_model_takes_about_what_its_weights_do():
    """Llama-3.1-8B on an H100 reads 16 GB at 3.35 TB/s: 4.8 ms at best, and servers take some 6 to 8."""
    profile = bundled_profile("llama-3.1-8b-h100-tp1")
    cost = Profiled(profile, model("llama-3.1-8b"), kv_dtype="bf16", engine=NONE)
    assert 4.8e9 < cost.iteration(step_shape(1, 500)) < 8e9


def test_a_name_that_is_nearly_right_is_answered_with_those_that_are():
    with pytest.raises(PagesimError, match=r"such as .*llama-3.1-8b-h100-tp4.*or the path"):
        find_profile("llama-3.1-8b-h100-tp3", model=model("llama-3.1-8b"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "system", "tp"),
    [("llama-3.1-8b", "h100_sxm", 2), ("qwen3-30b-a3b", "a100_sxm", 1), ("gpt-oss-20b", "b200_sxm", 4)],
)
def test_they_can_be_made_again(installed: Path, name: str, system: str, tp: int):
    (entry,) = room.bundle(installed, models=((name, None),), systems=(system,), degrees=(tp,))
    assert entry.profile is not None
    old = bundled_profile(entry.profile.name)
    spec = model(name)
    new, kept = (Profiled(each, spec, tp=tp, kv_dtype="bf16", engine=NONE) for each in (entry.profile, old))
    assert entry.profile.sources == old.sources
    assert entry.profile.errors == old.errors
    for shape in (step_shape(1, 100), step_shape(64, 64_000), step_shape(8, 4000, prompt=3000)):
        assert new.iteration(shape) == pytest.approx(kept.iteration(shape), rel=1e-3)


@pytest.mark.slow
def test_what_cannot_be_made_is_said(installed: Path):
    models = (("gpt-oss-20b", None), ("deepseek-v3", None))
    entries = list(room.bundle(installed, models=models, systems=("a100_sxm",)))
    assert [entry.profile for entry in entries] == [None] * 8
    assert {entry.why for entry in entries} == {
        *("no table of decode, experts, prefill", "its weights do not fit")
    }
