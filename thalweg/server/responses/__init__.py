"""The Responses dialect: items in and out, typed events, and stored responses."""
