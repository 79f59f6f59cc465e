"""The web page at `/`: a conversation with this server, and the server's current state."""
