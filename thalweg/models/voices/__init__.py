"""Networks that speak: units of an utterance in, rows of samples out. Each declaration has a network."""
