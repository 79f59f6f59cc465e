"""One file per family: from a configuration to a `ModelSpec`, with the names of its tensors. Loads no tensor framework."""
