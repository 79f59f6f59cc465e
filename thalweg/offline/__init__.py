"""The engine in the calling thread: a step at a time (`engine`), and what `LLM` makes of it. No server, no other process."""
