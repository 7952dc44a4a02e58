"""Decode attention over latents (MLA) and their writes, at odd shapes, beside the reference in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from pagesim.kernels import LatentCache, mla_decode_attention, mla_write
from tests.kernels.cases import largest_error

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
BOUND = {F16: 1e-3, BF16: 1e-2, F32: 1e-6}


@dataclass(frozen=True)
class Latents:
    """A problem; slots without a token hold NaN, entries that no context reaches name no block."""

    q: torch.Tensor
    cache: LatentCache
    table: torch.Tensor
    lengths: torch.Tensor

    def run(self, device, splits=None, backend="triton"):
        """Return what the op gives, written over NaN."""
        q, table, lengths = (x.to(device) for x in (self.q, self.table, self.lengths))
        cache = LatentCache(self.cache.cache.to(device), latent_dim=self.cache.latent_dim)
        out = torch.full((*q.shape[:2], cache.latent_dim), float("nan"), dtype=q.dtype, device=device)
        options = {"scale": 0.07, "num_splits": splits, "out": out, "backend": backend}
        return mla_decode_attention(q, cache, table, lengths, **options).cpu()

    def refer(self):
        """Return attention in plain torch and float64, ``[batch, q_heads, latent_dim]``."""
        block_size, rows = self.cache.sizes.block_size, []
        for q, table, length in zip(self.q.double(), self.table, self.lengths.tolist(), strict=True):
            blocks = table[: -(-length // block_size)].long()
            keys = self.cache.cache[blocks].flatten(0, 1)[:length].double()  # [length, latent_dim + rope_dim]
            weights = (0.07 * q @ keys.T).softmax(dim=-1)
            rows.append(weights @ keys[:, : self.cache.latent_dim])
        return torch.stack(rows)


def make_latents(lengths, *, heads=16, dims=(512, 64), block_size=16, dtype=F16) -> Latents:
    random = torch.Generator().manual_seed(0)
    needed = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(needed) + 3, generator=random).split([*needed, 3])
    table = torch.full((len(lengths), max(1, *needed)), -(2**31), dtype=torch.int32)
    cache = torch.full((sum(needed) + 3, block_size, sum(dims)), float("nan"))
    for row, (length, mine) in enumerate(zip(lengths, order, strict=False)):
        table[row, : len(mine)] = mine
        slots = (mine[:, None] * block_size + torch.arange(block_size)).flatten()[:length]
        cache.flatten(0, 1)[slots] = torch.randn(length, sum(dims), generator=random)
    q = torch.randn(len(lengths), heads, sum(dims), generator=random).to(dtype)
    lengths = torch.tensor(lengths, dtype=torch.int32)
    return Latents(q, LatentCache(cache.to(dtype), latent_dim=dims[0]), table, lengths)


def check(problem: Latents, output: torch.Tensor) -> None:
    assert largest_error(output, problem.refer()) <= BOUND[problem.q.dtype]
    assert (output[problem.lengths == 0] == 0).all()


PROBLEMS = {
    "one token": ({"lengths": [1]}, 1),
    "128 heads, an empty row": ({"lengths": [63, 0, 64, 65], "heads": 128, "block_size": 64}, 1),
    "17 heads, in splits": ({"lengths": [300, 1, 0], "heads": 17}, 3),
    "5 heads, block 1": ({"lengths": [65, 3], "heads": 5, "block_size": 1}, 1),
    "block 256": ({"lengths": [300, 256], "block_size": 256}, 2),
    "256 + 32": ({"lengths": [63, 130], "heads": 40, "dims": (256, 32)}, 2),
    "512 + 32, bfloat16": ({"lengths": [100, 31], "dims": (512, 32), "dtype": BF16}, 2),
    "float32": ({"lengths": [63, 5], "heads": 3, "dtype": F32}, 2),
}


@pytest.mark.slow_but("17 heads, in splits", "256 + 32")
@pytest.mark.parametrize(("problem", "splits"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_decode_over_latents(problem, splits, device):
    problem = make_latents(**problem)
    check(problem, problem.run(device, splits))
    check(problem, problem.run("cpu", backend="reference"))


@pytest.mark.slow_but("dims0-dtype0")
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("dims", [(256, 32), (512, 64)])
def test_latents_are_written_to_their_slots(dims, dtype, device):
    tokens, (latent_dim, rope_dim) = 37, dims
    latent = torch.randn(tokens, 3 * latent_dim).to(dtype)[:, latent_dim : 2 * latent_dim]
    rope = torch.randn(tokens, rope_dim).to(dtype)
    slots = torch.randperm(6 * 16)[:tokens]
    slots[::5] = -1
    caches = {}
    for backend, where in (("triton", device), ("reference", torch.device("cpu"))):
        cache = LatentCache(
            torch.full((6, 16, sum(dims)), 9.0, dtype=dtype, device=where), latent_dim=latent_dim
        )
        mla_write(latent.to(where), rope.to(where), cache, slots.to(where), backend=backend)
        caches[backend] = cache.cache.cpu().flatten(0, 1)
    assert torch.equal(caches["triton"], caches["reference"])
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            assert torch.equal(caches["triton"][slot], torch.cat([latent[token], rope[token]]))
    assert (caches["triton"] == 9).all(dim=1).sum() == 96 - (slots >= 0).sum()
