"""Batches of requests, in the format of OpenAI's batch files: `lines` is one request and its answer, `run` many in order."""
