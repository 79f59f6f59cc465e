"""Rows of the table: a file for each notation of calls, and one for reasoning."""
