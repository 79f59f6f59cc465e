"""JSON schemas made ready for llguidance: the same, or a narrower one that it can compile. Never a wider one.

`walk` knows where schemas are inside schemas. `prepare` goes through them and calls what rewrites a keyword.
"""
