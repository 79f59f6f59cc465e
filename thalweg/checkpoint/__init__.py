"""Finds, reads and validates model files, which are untrusted. No tensor framework, no device, no model code."""
