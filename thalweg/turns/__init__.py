"""Turn formats: how models write reasoning and tool calls. A reader, a grammar and a writer come from the rows of one table."""
