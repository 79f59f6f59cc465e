"""The engine in the calling thread: a step at a time (`engine`), and the methods of `LLM` over it. No server, no other
process."""
