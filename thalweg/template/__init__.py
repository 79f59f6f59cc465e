"""Chat templates: renders messages to a prompt, in a confined process. Imports no tensor framework."""
