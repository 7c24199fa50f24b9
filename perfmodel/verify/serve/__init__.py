"""Runs a plan with the engine that is installed here: start, wait, benchmark, collect, stop."""
