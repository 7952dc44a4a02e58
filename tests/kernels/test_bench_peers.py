"""The peers' adapters, against stand-ins that take their arguments by name and compute what they should."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim.kernels import Cache, reference  # noqa: E402
from pagesim.kernels.bench import peers  # noqa: E402
from pagesim.kernels.bench import session as session_module  # noqa: E402
from pagesim.kernels.bench.rows import Point  # noqa: E402
from pagesim.kernels.bench.run import run_points  # noqa: E402

SHAPE = {
    "batch": 3, "context": 300, "q_heads": 4, "kv_heads": 2, "head_size": 64, "dtype": "fp16", "layout": "NHD"
}  # fmt: skip


def decode(q, key_cache, value_cache, table, lengths, scale, layout="NHD"):
    cache = Cache(key_cache, value_cache, layout=layout)
    return reference.paged_attention(q, cache, table, lengths, scale=scale)


USED: list[str] = []
"""The cores of each wrapper that was made."""


class Wrapper:
    """FlashInfer's ``BatchDecodeWithPagedKVCacheWrapper``, as its documentation describes it."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        backend="auto",
    ):
        assert float_workspace_buffer.dtype == torch.uint8
        self.layout = kv_layout
        USED.append("tensor" if use_tensor_cores else "cuda")

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
        *, pos_encoding_mode="NONE", window_left=-1, window_right=0, logits_soft_cap=None,
        q_data_type="float16", kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None,
    ):  # fmt: skip
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert q_data_type == kv_data_type == torch.float16
        pages = indptr.diff()
        self.table = indices.view(len(last_page_len), -1)
        self.lengths = (pages - 1) * page_size + last_page_len
        self.scale, self.shape = sm_scale, (len(pages), num_qo_heads, head_dim)

    def run(self, q, paged_kv_cache):
        assert q.shape == self.shape
        return decode(q, *paged_kv_cache, self.table, self.lengths, self.scale, self.layout)


def vllm_before(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, q_descale, k_descale, v_descale, alibi_slopes=None, sinks=None,
):  # fmt: skip
    """The arguments that the ``unified_attention`` of vLLM's Triton backend has had from the beginning."""
    assert cu_seqlens_q.tolist() == list(range(len(q) + 1))
    assert max_seqlen_q == 1
    assert max_seqlen_k == int(seqused_k.max())
    out.copy_(decode(q, k, v, block_table, seqused_k, softmax_scale))


def vllm_since(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, q_descale, k_descale, v_descale, seq_threshold_3D=None,
    num_par_softmax_segments=None, softmax_segm_output=None, softmax_segm_max=None, softmax_segm_expsum=None,
    alibi_slopes=None, output_scale=None, qq_bias=None, sinks=None, mm_prefix_range=None,
):  # fmt: skip
    """All of them: with fewer rows of room than queries it would not split (vLLM 0.33.0)."""
    if len(q) <= seq_threshold_3D:
        assert softmax_segm_max.shape[0] >= len(q)
    assert softmax_segm_output.shape == (seq_threshold_3D, q.shape[1], num_par_softmax_segments, 64)
    assert softmax_segm_max.shape == softmax_segm_expsum.shape == softmax_segm_output.shape[:3]
    vllm_before(
        q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
        block_table, softcap, q_descale, k_descale, v_descale,
    )  # fmt: skip


STAND_INS = {
    "flashinfer": ("flashinfer-decode", {"flashinfer": {"BatchDecodeWithPagedKVCacheWrapper": Wrapper}}),
    "vLLM": (
        "vllm-triton-decode",
        {"vllm.v1.attention.ops.triton_unified_attention": {"unified_attention": vllm_since}},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(session_module.Session, "copy_gb_per_s", 10.0)
    monkeypatch.setattr(session_module.Session, "peak_tflop_per_s", 1.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that installs modules with these contents."""

    def install(modules: dict[str, dict[str, object]]) -> None:
        for name, contents in modules.items():
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, package, ModuleType(package))
                sys.modules[package].__path__ = []
            vars(sys.modules[name]).update(contents)
        monkeypatch.setattr(peers, "installed", lambda name: name in sys.modules)

    return install


def measure(op: str, **changes: object) -> dict[str, object]:
    point = Point("attention", op, {**SHAPE, "block_size": 256, **changes})
    return run_points([point], "cpu", seconds=1e-6).rows[0]


@pytest.mark.parametrize("case", STAND_INS)
def test_a_peer_is_called_as_it_is_meant_to_be(case, stand_in):
    op, modules = STAND_INS[case]
    stand_in(modules)
    row = measure(op)
    assert row["error"] is None
    assert row["max_error"] < 5e-3
    assert op in peers.peers_found()


def test_flashinfer_is_measured_with_cuda_cores_and_with_tensor_cores(stand_in):
    from pagesim.kernels.bench import selection

    op, modules = STAND_INS["flashinfer"]
    stand_in(modules)
    asked = {"ops": op, "batch": "2", "context": "50", "heads": "4/2", "head_size": "64", "dtype": "fp16"}
    points = selection.points("attention", "cpu", False, asked)
    USED.clear()
    rows = run_points(points, "cpu", seconds=1e-6).rows
    assert [(row["cores"], row["error"]) for row in rows] == [("cuda", None), ("tensor", None)]
    assert list(dict.fromkeys(USED)) == ["cuda", "tensor"]


REFUSED = {
    "vllm-triton-decode": [
        ({"block_size": 8}, "vllm-triton-decode needs a block size that is a multiple of 16, not 8"),
        ({"layout": "HND"}, "vllm-triton-decode reads layout NHD, not HND"),
        ({"dtype": "fp8"}, "vllm-triton-decode is measured in fp16 or bf16, not fp8"),
        ({}, "this vllm has no triton_unified_attention"),
    ],
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_a_peer_does_not_do_is_unavailable_with_its_reason(op, stand_in):
    stand_in({peers.PEERS[op].package: {}})
    for changes, said in REFUSED[op]:
        row = measure(op, **changes)
        assert (row["status"], row["error"]) == ("unavailable", said)


def test_a_peer_that_is_not_installed_is_unavailable(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda name: False)
    assert measure("flashinfer-decode")["error"] == "flashinfer is not installed"
    assert peers.peers_found() == []


def test_a_peer_whose_interface_has_changed_fails_at_its_points(stand_in):
    def changed(q: torch.Tensor) -> None:
        raise AssertionError

    stand_in({"vllm.v1.attention.ops.triton_unified_attention": {"unified_attention": changed}})
    row = measure("vllm-triton-decode")
    assert row["status"] == "failed"
    assert row["error"].startswith("TypeError: ")
