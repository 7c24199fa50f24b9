"""The version, read by the build and by the package without touching installed metadata."""

__version__ = "0.1.0"
