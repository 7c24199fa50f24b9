"""Measurements beside predictions: read them, judge them, learn from them."""
