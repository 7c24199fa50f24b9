"""Which few configurations to measure, and the scripts that measure them."""
