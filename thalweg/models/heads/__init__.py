"""Tails other than sampling: results of a step from hidden states."""
