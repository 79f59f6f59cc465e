"""Builders of the parts of a step, one file each. `builder` has their base classes."""
