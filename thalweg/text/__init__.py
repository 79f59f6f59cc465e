"""Text on the host: tokenizer, detokenizer, stop strings, chat template. Knows no engine and no tensor framework."""
