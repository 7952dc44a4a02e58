"""Tiers as users write them."""

import pytest

from pagesim.errors import PagesimError
from pagesim.hardware import Link, gpu, parse_tiers
from pagesim.hardware.tier_spec import NVME, RDMA

HOST = gpu("h100").host
BOTH = (HOST, HOST)


def tier(text):
    return parse_tiers([text], BOTH)[0]


def test_a_chain_has_capacities_links_and_places():
    host, ssd, store = parse_tiers(
        ["host:64GiB:25GB/s", "ssd:1TiB:6GB/s:3GB/s:80us:exclusive", "far:2TB:12.5GB/s:direct"], BOTH
    )
    assert (host.capacity_bytes, ssd.capacity_bytes, store.capacity_bytes) == (64 << 30, 1 << 40, 2 * 10**12)
    assert (host.load.bytes_per_s, host.store.bytes_per_s, host.load.latency_s) == (25e9, 25e9, 0.0)
    assert (ssd.load.bytes_per_s, ssd.store.bytes_per_s) == (6e9, 3e9)
    assert ssd.load.latency_s == ssd.store.latency_s == pytest.approx(80e-6)
    assert [each.exclusive for each in (host, ssd, store)] == [False, True, False]
    assert [each.direct for each in (host, ssd, store)] == [False, False, True]


def test_a_link_that_is_not_given_is_a_datasheets_and_says_which():
    assert (tier("host:64GiB").load, tier("host:64GiB").store) == BOTH
    assert (tier("ssd:1TiB").load, tier("ssd:1TiB").store) == NVME
    assert tier("remote:1TiB").load == RDMA
    slower = tier("host:64GiB:1ms").load
    assert (slower.bytes_per_s, slower.latency_s) == (HOST.bytes_per_s, 1e-3)
    assert slower.note.startswith("PCIe 5.0")
    assert "given by --tier ssd:1TiB:5GB/s" in tier("ssd:1TiB:5GB/s").load.note


def test_a_tier_may_have_no_limit_and_no_time():
    endless = tier("host:infGiB:infGB/s")
    assert endless.capacity_bytes is None
    assert endless.load == Link(float("inf"), 0.0, endless.load.note)


def test_a_tier_of_no_capacity_is_a_tier():
    assert tier("host:0GiB").capacity_bytes == 0


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["host"], "it has 0 capacities"),
        (["host:64"], "'64' is none of a capacity (64GiB)"),
        (["host:64GiB:1TiB"], "2 capacities"),
        (["host:64GiB:1GB/s:2GB/s:3GB/s"], "3 bandwidths"),
        (["host:64GiB:0GB/s"], "its bandwidth 0GB/s must be above 0"),
        (["host:64GiB:25gb/s"], "'25gb/s' is none of"),
        (["host:64GiB:inclusive:exclusive"], "one of inclusive, exclusive, not several"),
        (["host:64GiB:lru:arc"], "one of lru, arc, never, lru-chunk, arc-textbook, fifo, lfu, sieve"),
        (["64GiB"], "with a name that begins with a letter"),
        (["device:64GiB"], "is not device"),
        (["host:1GiB", "host:2GiB"], "there is a tier host already"),
        (["host:1GiB", "ssd:1TiB:exclusive:direct"], "takes what host evicts, so it must be in line"),
        (["host:64GiB:infs"], "'infs' is none of"),
    ],
)
def test_what_is_no_tier_is_refused_in_a_sentence_that_names_it(texts, said):
    with pytest.raises(PagesimError) as caught:
        parse_tiers(texts, BOTH)
    assert texts[-1] in str(caught.value)
    assert said in str(caught.value)
