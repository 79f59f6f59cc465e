"""The Cohere dialect: chat and vectors."""
