"""The rows of the battery, by letter."""

from rows import a, b, c, d, e, f, g, h, k, l, m, n, o

ROWS = tuple(row for letter in (a, b, c, d, e, f, g, h, k, l, m, n, o) for row in letter.ROWS)
