"""vLLM's native KV cache offloading to host memory, as its scheduler sees it."""
