"""HTTP itself: the socket, a connection's bytes, bodies, answers, and the middleware of every route. Knows no endpoint."""
