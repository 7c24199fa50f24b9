"""The command line: parse, one library call, render.  A file a command, loaded when it is used."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

PROGRAM = "perfmodel"
INTERRUPTED = 130
COLLECT_AFTER = 200_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and exit with its code.

    Only perfmodel's own errors become lines; a bug shows its traceback and exits with 1.
    """
    # a short process that makes many small objects and no garbage: collecting costs a tenth of it
    gc.set_threshold(COLLECT_AFTER)
    # and so does the last collection: memory goes back with the process anyway
    atexit.register(gc.freeze)
    # otherwise pydantic reads the entry points of every installed package to look for plugins
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from perfmodel.cli.app import run
    from perfmodel.cli.streams import open_streams

    open_streams()
    code = run(list(sys.argv[1:] if argv is None else argv))
    sys.exit(code)
