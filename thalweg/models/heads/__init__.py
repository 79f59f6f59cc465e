"""Tails other than sampling: what a step makes of hidden states."""
