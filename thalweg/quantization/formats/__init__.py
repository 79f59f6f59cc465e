"""One file per kind of quantised checkpoint: its settings, its tensors, and how they are read into canonical form."""
