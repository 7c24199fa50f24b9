"""Engine terms and interval widths from measured whole runs."""
