"""Shared by every dialect: admission, probes and shutdown, and running requests on the engine. Knows no dialect."""
