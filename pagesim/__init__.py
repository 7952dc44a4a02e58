"""pagesim: replay LLM serving traces through KV-cache memory systems and see where the memory goes."""
