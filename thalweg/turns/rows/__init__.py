"""Rows of the table: a file for each way of writing calls, and one for reasoning."""
