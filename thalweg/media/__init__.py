"""Sounds that requests bring: decoded where they can do no harm, and made into what models take."""
