"""Offload: vLLM's native offloading of KV to the host, as its scheduler sees it."""
