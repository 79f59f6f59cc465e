"""The Anthropic dialect: Messages, and the tokens of a conversation."""
