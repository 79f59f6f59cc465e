"""Derives turn formats from the text that a chat template renders."""
