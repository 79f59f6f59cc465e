"""Routes for operators of the server, not for its clients. Routes with an effect need --server-dev-mode."""
