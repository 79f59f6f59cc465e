"""Text on the host: tokenizer, detokenizer, stop strings. Knows no engine and no tensor framework."""
