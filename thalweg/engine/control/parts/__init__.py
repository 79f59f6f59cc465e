"""Who fills the parts of a step, one file each. `builder` is what they have in common."""
