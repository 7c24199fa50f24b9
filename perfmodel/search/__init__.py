"""Enumerate, rank, tie and explain configurations."""
