"""Speculative decoding: drafters propose tokens, one step verifies them, measurements decide whether that pays.

A drafter is one file and one line of `thalweg.drafters`. Installed packages add theirs by entry points.
"""
