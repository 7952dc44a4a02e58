"""The ops of ``pagesim.kernels``: arguments are checked, then the Triton kernel or the reference runs.

Words that all ops share:

- ``batch`` sequences, each with a *context* of tokens whose keys and values are cached;
- a *cache* (``Cache``) of ``blocks`` blocks of ``block_size`` token slots, a key and a value of D numbers a
  slot and KV head, in one of the layouts of ``layouts.py``, of the queries' type or in FP8 (e4m3, multiplied
  by a scale when read);
- ``block_table``, int32 ``[batch, max_blocks]``: token t of sequence b lies in slot ``t % block_size`` of
  block ``block_table[b, t // block_size]``; entries beyond a context are never read;
- ``context_lens``, int32 ``[batch]``: tokens in the cache, those being computed included; 0 for an idle row;
- ``scale``: what a dot product is multiplied by, 1/√D unless given;
- ``backend``: ``auto`` runs the Triton kernel on a GPU and the reference on a CPU; ``triton`` and
  ``reference`` insist;
- ``check``: False where arguments like these were looked at already: layers of a model share their batch, and
  checks of every layer would take longer than small kernels.

Every error is a ``PagesimError``, one sentence that names the argument. Block ids, slots and lengths are
looked at on a CPU always and on a GPU only under ``checked_bounds()``, because looking means waiting for
the GPU.
"""

from pagesim.errors import PagesimError

try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise PagesimError(
        "pagesim.kernels needs torch, which is not installed: pip install '.[kernels]' in the checkout"
    ) from missing

from pagesim.kernels.attention_ops import (
    contiguous_decode_attention,
    decode_attention,
    decode_plan,
    gather_decode_attention,
    prefill_attention,
)
from pagesim.kernels.cache import TOKEN_MAX, BlockPool, Cache, token_scaled
from pagesim.kernels.cache_ops import (
    copy_blocks,
    gather_blocks,
    gather_sequences,
    reshape_and_cache,
    scatter_blocks,
)
from pagesim.kernels.cascade_ops import cascade_decode_attention, cascade_plan
from pagesim.kernels.checks import checked_bounds
from pagesim.kernels.latents import LatentCache
from pagesim.kernels.mla_ops import mla_decode_attention, mla_plan, mla_write
from pagesim.kernels.sharing import SharedPrefixes
from pagesim.kernels.variant import Variant

__all__ = [
    "TOKEN_MAX",
    "BlockPool",
    "Cache",
    "LatentCache",
    "SharedPrefixes",
    "Variant",
    "cascade_decode_attention",
    "cascade_plan",
    "checked_bounds",
    "contiguous_decode_attention",
    "copy_blocks",
    "decode_attention",
    "decode_plan",
    "gather_blocks",
    "gather_decode_attention",
    "gather_sequences",
    "mla_decode_attention",
    "mla_plan",
    "mla_write",
    "prefill_attention",
    "reshape_and_cache",
    "scatter_blocks",
    "token_scaled",
]
