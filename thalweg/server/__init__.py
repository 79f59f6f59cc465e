"""The command line and the OpenAI-compatible HTTP server. Imports no tensor framework."""
