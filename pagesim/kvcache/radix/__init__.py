"""SGLang's prefix cache: a radix tree, and the block managers that use it."""

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.host import HostNode, HostTree, WritePolicy
from pagesim.kvcache.radix.host_memory import HostPool, HostRadixManager
from pagesim.kvcache.radix.memory import RadixManager
from pagesim.kvcache.radix.state_memory import StatePool, StateRadixManager
from pagesim.kvcache.radix.states import StateNode, StateTree
from pagesim.kvcache.radix.tree import Node, RadixTree
from pagesim.kvcache.radix.windowed import WindowedTree, WindowNode
from pagesim.kvcache.radix.windowed_memory import WindowedRadixManager, WindowPool

__all__ = [
    "EvictionPolicy",
    "HostNode",
    "HostPool",
    "HostRadixManager",
    "HostTree",
    "Node",
    "RadixManager",
    "RadixTree",
    "StateNode",
    "StatePool",
    "StateRadixManager",
    "StateTree",
    "WindowNode",
    "WindowPool",
    "WindowedRadixManager",
    "WindowedTree",
    "WritePolicy",
]
