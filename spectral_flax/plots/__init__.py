"""Figures, one family a file: each function takes plain numbers and returns a matplotlib Figure."""
