"""Which connector an engine of vLLM v1 has."""

from __future__ import annotations

from pagesim.kvcache import BlockManager
from pagesim.kvcache.tiers import TierChain
from pagesim.scheduling.disaggregated import PrefillConnector, PullConnector
from pagesim.scheduling.kv_connector import KVConnector
from pagesim.scheduling.offload.offloading import OffloadingConnector
from pagesim.scheduling.options import Prices
from pagesim.scheduling.traits import Pool
from pagesim.scheduling.vllm_v1_options import VllmV1Options


def make_connector(
    options: VllmV1Options,
    memory: BlockManager,
    *,
    in_flight: int,
    chain: TierChain | None,
    pool: Pool | None,
    prices: Prices | None,
) -> KVConnector | None:
    """Return the connector that an engine has under its options; None where no KV moves to other places.

    Args:
        options: resolved.
        memory: empty.
        in_flight: batches that are scheduled before the outcome of the first of them is known.
        chain: of tiers behind the device, in place of the one that vLLM has.
        pool: what the engine does where prefill is apart from decode.
        prices: what it costs to load and to compute.

    Raises:
        PagesimError: the connector is not modelled for such memory.
    """
    if pool is not None:
        kind = PrefillConnector if pool == "prefill" else PullConnector
        return kind(memory, in_flight)
    if options.offloads:
        return OffloadingConnector(memory, options, in_flight=in_flight, chain=chain, prices=prices)
    return None
