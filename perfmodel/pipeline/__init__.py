"""Stages composed into a request: device time, host gaps, waiting, overlap."""
