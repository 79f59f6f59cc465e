"""Routes for who runs the server, not for who uses it. They exist with --server-dev-mode."""
