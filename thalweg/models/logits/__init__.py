"""Changes of logits before sampling, by the parts of a step: one file each. `change` is their interface."""
