"""The web page at `/`: a conversation with this server, and what the server is doing meanwhile."""
