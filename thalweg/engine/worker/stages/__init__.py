"""The stages of a build: `open`, `model`, `cache`, `steps`, `config`. `engine.worker.build` calls them in this order."""
