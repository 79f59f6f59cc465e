"""Before an engine: configuration merged, and the memory plan. Loads no tensor framework, opens no device."""
