"""Ray: a server as a Serve deployment, a `server_cls` for Ray Serve LLM, and batch inference in Ray Data."""
