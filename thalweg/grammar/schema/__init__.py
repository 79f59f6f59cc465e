"""Rewrites JSON schemas for llguidance into equivalent or narrower ones that it can compile, never wider ones.

`walk` finds the schemas within schemas. `prepare` goes through them and calls the rewriters of keywords.
"""
