"""The Responses dialect: items in and out, typed events, and responses that are kept."""
