"""HTTP itself: the socket, a connection's bytes, bodies, answers, and what surrounds every route. Knows no endpoint."""
