"""What the ops of latents refuse, in one sentence that names the argument."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim import PagesimError  # noqa: E402
from pagesim.kernels import LatentCache, mla_decode_attention, mla_plan, mla_write  # noqa: E402

F16 = torch.float16
CACHE = LatentCache(torch.zeros(4, 16, 576, dtype=F16))
Q = torch.zeros(1, 16, 576, dtype=F16)
TABLE, LENGTHS = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
LATENT, ROPE, SLOTS = torch.zeros(2, 512, dtype=F16), torch.zeros(2, 64, dtype=F16), torch.tensor([3, 4])


def decode(q=Q, cache=CACHE, table=TABLE, lengths=LENGTHS, scale=0.1, **options):
    return mla_decode_attention(q, cache, table, lengths, scale=scale, **options)


def write(latent=LATENT, rope=ROPE, cache=CACHE, slots=SLOTS):
    mla_write(latent, rope, cache, slots)


REFUSED = {
    "latents": (
        lambda: LatentCache(torch.zeros(4, 16, 576), latent_dim=500),
        r"latent_dim is 500; one of 256, 512 is needed",
    ),
    "what is beside them": (
        lambda: LatentCache(torch.zeros(4, 16, 512)),
        r"cache has 512 numbers a token, 0 beside latent_dim 512; one of 32, 64 is needed",
    ),
    "axes": (
        lambda: LatentCache(torch.zeros(4, 16, 1, 576)),
        r"cache has the shape \[4, 16, 1, 576\]; \[blocks, block_size, latent_dim \+ rope_dim\] is needed",
    ),
    "empty blocks": (lambda: LatentCache(torch.zeros(4, 0, 576)), r"at least one token a block is needed"),
    "type": (lambda: LatentCache(torch.zeros(4, 16, 576).long()), r"cache is int64; float16 or"),
    "no cache": (lambda: decode(cache=CACHE.cache), r"cache is a Tensor; LatentCache\(cache\) is needed"),
    "width of queries": (
        lambda: decode(q=Q[..., :512]),
        r"q has the shape .* \[batch, q_heads, 576\] is needed",
    ),
    "no heads": (lambda: decode(q=Q[:, :0]), r"q has the shape \[1, 0, 576\]; at least one head is needed"),
    "type of queries": (lambda: decode(q=Q.float()), r"q is float32; float16 is needed"),
    "scale": (lambda: decode(scale=float("nan")), r"scale is nan; a finite number is needed"),
    "lengths": (lambda: decode(lengths=LENGTHS + 13), r"context_lens holds 33; 0 to 32 is allowed"),
    "block ids": (lambda: decode(table=TABLE + 4), r"block_table\[0, 0\] is 4; 0 to 3 is allowed"),
    "out": (lambda: decode(out=Q), r"out has the shape \[1, 16, 576\]; \[1, 16, 512\] is needed"),
    "latents to write": (
        lambda: write(latent=LATENT[:, :100]),
        r"latent has the shape \[2, 100\]; \[2, 512\]",
    ),
    "rotated part": (lambda: write(rope=ROPE[:1]), r"rope has the shape \[1, 64\]; \[2, 64\] is needed"),
    "slots": (lambda: write(slots=SLOTS + 60), r"slot_mapping holds 64; -1 to 63 is allowed"),
    "a slot twice": (lambda: write(slots=SLOTS // 5), r"slot_mapping holds a number twice"),
    "splits": (lambda: mla_plan(Q, CACHE, [20], num_splits=0), r"num_splits is 0; at least 1 is needed"),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_off_is_named(call, sentence):
    with pytest.raises(PagesimError, match=sentence):
        call()


def test_on_a_cpu_the_reference_runs():
    write()
    assert decode().shape == (1, 16, 512)
