"""Which table counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagesim.costs.operators import Store
from pagesim.costs.operators.store import tables_folder
from pagesim.errors import PagesimError

SYSTEM = "x1_sxm"
ROW = [{"latency": 1.0}]
Put = Callable[[str, list[dict[str, Any]]], Path]


def test_without_a_version_the_current_one_counts(store: Path):
    found = Store(SYSTEM, tables=store)
    assert found.version == "1.2.0"
    table = found.table("gemm", "gemm_perf")
    assert table is not None
    assert (table.version, table.how, table.note) == ("1.2.0", "asked", "")


def test_a_system_may_have_a_current_version_of_its_own(store: Path):
    (store / "data" / "old_sxm" / "gemm" / "vllm").mkdir(parents=True)
    assert Store("old_sxm", tables=store).version == "1.0.0"


@pytest.mark.parametrize(
    ("wanted", "version", "how"),
    [
        ("0.9.0", "0.9.0", "asked"),
        ("1.0.0", "0.10.0", "older"),  # not 0.9.0: ten is more than nine
        ("1.3.0", "1.2.0", "older"),
        ("0.1.0", "0.9.0", "newer"),
        ("1.2.0rc3", "0.10.0", "older"),  # a candidate comes before its release
    ],
)
def test_another_version_stands_in_for_one_that_there_is_not(
    store: Path, put_table: Put, wanted: str, version: str, how: str
):
    for other in ("0.9.0", "0.10.0", "9.9.dev1"):
        put_table(f"gemm/vllm/{other}/gemm_perf", ROW)
    found = Store(SYSTEM, version=wanted, tables=store).table("gemm", "gemm_perf")
    assert found is not None
    assert (found.version, found.how) == (version, how)
    assert (how == "asked") == (found.note == "")
    assert how == "asked" or (version in found.note and wanted in found.note)


def test_a_drop_of_one_operator_counts_only_by_its_name(store: Path, put_table: Put):
    put_table("gemm/vllm/1.3.dev7/gemm_perf", ROW)
    latest = Store(SYSTEM, version="2.0", tables=store).table("gemm", "gemm_perf")
    named = Store(SYSTEM, version="1.3.dev7", tables=store).table("gemm", "gemm_perf")
    assert latest is not None
    assert named is not None
    assert (latest.version, named.version) == ("1.2.0", "1.3.dev7")


def test_a_list_of_reuses_goes_before_an_older_version(store: Path, put_table: Put):
    put_table("gemm/vllm/1.0.0/gemm_perf", ROW)
    folder = store / "data" / SYSTEM / "gemm" / "vllm" / "1.1.0"
    folder.mkdir()
    (folder / "reuse.yaml").write_text("reuse:\n- {table: gemm_perf, from_version: 1.2.0}\n")
    found = Store(SYSTEM, version="1.1.0", tables=store).table("gemm", "gemm_perf")
    assert found is not None
    assert (found.version, found.how) == ("1.2.0", "reused")
    (folder / "reuse.yaml").write_text("reuse:\n- {table: gemm_perf, from_version: 7.0.0}\n")
    with pytest.raises(PagesimError, match=r"7\.0\.0, which is not there"):
        Store(SYSTEM, version="1.1.0", tables=store).table("gemm", "gemm_perf")


def test_nccl_has_versions_of_its_own(store: Path, put_table: Put):
    put_table("comm/nccl/2.0/nccl_perf", ROW)
    put_table("comm/nccl/2.1/nccl_perf", ROW)
    found = Store(SYSTEM, tables=store).nccl()
    assert found is not None
    assert found.version == "2.1"


def test_a_table_that_there_is_not_is_none(store: Path):
    assert Store(SYSTEM, tables=store).table("mla", "mla_context_module_perf") is None


def test_what_is_not_there_is_named(store: Path, tmp_path: Path):
    with pytest.raises(PagesimError, match=r"system is 'h9'; it must be one of x1_sxm"):
        Store("h9", tables=store)
    with pytest.raises(PagesimError, match=r"backend is 'x'; x1_sxm has tables of vllm"):
        Store(SYSTEM, "x", tables=store)
    with pytest.raises(PagesimError, match="must be a folder that holds"):
        tables_folder(tmp_path / "nowhere")
    (store / "query_versions.yaml").write_text("defaults: {}\n")
    with pytest.raises(PagesimError, match="names no current version of vllm"):
        Store(SYSTEM, tables=store)


@pytest.mark.parametrize("text", ["reuse: [", "\x00", "reuse: {a: &a [*b]}"])
def test_damaged_yaml_is_refused(store: Path, text: str):
    folder = store / "data" / SYSTEM / "gemm" / "vllm" / "1.2.1"
    folder.mkdir()
    (folder / "reuse.yaml").write_text(text)
    with pytest.raises(PagesimError, match=r"reuse\.yaml: is no YAML"):
        Store(SYSTEM, version="1.2.1", tables=store).table("gemm", "gemm_perf")


@pytest.mark.parametrize("text", ["reuse: 1", "[]", "reuse: [1, {table: other}]", ""])
def test_a_list_of_reuses_that_does_not_name_the_table_says_nothing(store: Path, text: str):
    folder = store / "data" / SYSTEM / "gemm" / "vllm" / "1.2.1"
    folder.mkdir()
    (folder / "reuse.yaml").write_text(text)
    found = Store(SYSTEM, version="1.2.1", tables=store).table("gemm", "gemm_perf")
    assert found is not None
    assert found.how == "older"
