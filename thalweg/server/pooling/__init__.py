"""The dialect of pooling models: vectors, classes, scores and ranks. A file per route."""
