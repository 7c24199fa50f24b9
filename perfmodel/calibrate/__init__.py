"""Fit the cost laws to measurements."""
