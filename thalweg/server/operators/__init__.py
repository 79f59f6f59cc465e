"""Routes for who runs the server, not for who uses it. Those that change something need --server-dev-mode."""
