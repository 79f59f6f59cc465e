"""The HTTP server: `http` carries, `core` runs, a room per dialect (`openai`). Imports no tensor framework."""
