"""Answers as records, tables and JSON; no arithmetic."""
