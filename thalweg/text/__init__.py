"""Text on the host: tokenizer, detokenizer, stop strings. Imports no engine and no tensor framework."""
