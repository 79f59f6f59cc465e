"""Adapters to the serving frameworks of others. Each imports its framework on use, and thalweg's public API only."""
