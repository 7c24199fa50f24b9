"""Models read from a directory in the diffusers format: configuration files, no weights."""
