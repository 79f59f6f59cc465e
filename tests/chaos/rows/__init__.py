"""The rows of the battery, by letter."""

from rows import a, b, c, d, e, f, g, h, k, l, m

ROWS = tuple(row for letter in (a, b, c, d, e, f, g, h, k, l, m) for row in letter.ROWS)
