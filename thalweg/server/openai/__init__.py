"""The OpenAI-compatible endpoints: requests checked, turned into prompts and SamplingParams, and outputs turned back."""
