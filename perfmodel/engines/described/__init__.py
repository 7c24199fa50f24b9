"""Engines that are described by facts alone."""
