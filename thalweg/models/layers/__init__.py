"""Layers, each written once: an object holds bound ops and static facts, never a tensor. `specs` declares its parameters;
calling it with those parameters computes. All are traceable: no rank, no `.item()`, no shape that depends on data."""
