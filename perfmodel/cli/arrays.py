"""Loading numpy for a command that asks one question."""

from __future__ import annotations

import os
import sys

THREADS = "OPENBLAS_NUM_THREADS"


def load() -> None:
    """Import numpy without a pool of threads: starting one costs more than an answer gains.

    The library reads the number of threads when it is loaded, so the variable is gone again
    before a child process could inherit it; a number that the user set stays.
    """
    if "numpy" in sys.modules or THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[THREADS]
