"""What changes logits before a token is drawn, by the parts of a step: one file each. `change` is what they have in common."""
