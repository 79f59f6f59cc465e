"""Turn formats: how models write reasoning and tool calls. One table; a reader, a grammar and a writer come from its rows."""
