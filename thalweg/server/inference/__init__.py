"""Token ids in, token ids out: prompts rendered elsewhere, and servers without texts."""
