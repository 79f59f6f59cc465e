"""Dynamo: a worker that serves requests of its frontend. Run `python -m thalweg.integrations.dynamo MODEL`."""
