"""Rulers of model quality that need nothing but the package. A room of tasks and judges; it knows no engine and no server."""
