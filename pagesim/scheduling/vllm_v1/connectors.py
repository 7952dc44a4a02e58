"""Which connector an engine of vLLM v1 has."""

from __future__ import annotations

from pagesim.kvcache import KVCache
from pagesim.kvcache.tiers import TierChain
from pagesim.scheduling.core import Pool
from pagesim.scheduling.disaggregated import PrefillConnector, PullConnector
from pagesim.scheduling.kv_connector import KVConnector
from pagesim.scheduling.offload.offloading import OffloadingConnector
from pagesim.scheduling.options import Prices
from pagesim.scheduling.vllm_v1_options import VllmV1Options


def make_connector(
    options: VllmV1Options,
    memory: KVCache,
    *,
    chain: TierChain | None,
    pool: Pool | None,
    prices: Prices | None,
) -> KVConnector | None:
    """Return the connector that an engine has under its options; None where no KV moves to other places.

    Args:
        options: resolved.
        memory: empty.
        chain: of tiers behind the device, in place of the one that vLLM has.
        pool: what the engine does where prefill is apart from decode.
        prices: what it costs to load and to compute.

    Raises:
        PagesimError: the connector is not modelled for such memory.
    """
    if pool is not None:
        kind = PrefillConnector if pool == "prefill" else PullConnector
        return kind(memory, 2 if options.async_scheduling else 1)
    if options.offloads:
        return OffloadingConnector(memory, options, chain=chain, prices=prices)
    return None
