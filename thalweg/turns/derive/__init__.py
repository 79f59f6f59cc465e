"""Turn formats read off what a chat template writes."""
