"""stdout is the answer, stderr everything else."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.report.answer import ProblemInfo


def no_color() -> bool:
    """Whether the environment asks for no colour."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def is_utf8(encoding: str | None) -> bool:
    """Whether a stream takes any character."""
    return (encoding or "").lower().replace("-", "").replace("_", "") in ("utf8", "cp65001")


def put(text: str, path: Path | None = None) -> None:
    """Text to a file, or to stdout; a closed pipe is quiet.

    Raises:
        BadInput: the file, or stdout, cannot be written.
    """
    if path is not None:
        try:
            path.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(
                Problem(
                    "out",
                    f"--out {path} cannot be written: {reason}",
                    field="--out",
                    value=str(path),
                )
            ) from None
        say(f"wrote {path}")
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        sys.stdout.write(text.encode("ascii", "replace").decode("ascii"))
        sys.stdout.flush()
    except BrokenPipeError:
        quiet_pipe()
    except OSError as error:
        raise unwritable(error) from None


def quiet_pipe() -> None:
    """The reader of stdout has gone: send the rest nowhere, also what Python flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, AttributeError, ValueError):
        sys.stdout = io.StringIO()


def unwritable(error: OSError) -> BadInput:
    """The line for a full or closed stdout; nothing more is written there."""
    quiet_pipe()
    message = f"stdout cannot be written: {error.strerror}; try --out FILE or another place"
    return BadInput(Problem("stdout", message, "stdout"))


class Closed(io.TextIOBase):
    """Stands for a stdout that was closed before the start: any text is an error."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Refuse.

        Raises:
            OSError: always.
        """
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def open_streams() -> None:
    """Streams that the caller closed: stdout refuses text, stderr drops it."""
    if sys.stdout is None:
        sys.stdout = Closed()
    if sys.stderr is None:
        sys.stderr = io.StringIO()


def say(line: str) -> None:
    """One physical line on stderr."""
    text = " ".join(line.split())
    try:
        print(text, file=sys.stderr)
    except UnicodeEncodeError:
        print(text.encode("ascii", "replace").decode("ascii"), file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def warn(problems: Iterable[Problem | ProblemInfo]) -> None:
    """Each problem as one line on stderr, errors first, each line once."""
    lines = dict.fromkeys(
        problem.line() for problem in sorted(problems, key=lambda p: p.severity != "error")
    )
    for line in lines:
        say(line)


def few(problems: Iterable[Problem], most: int = 20) -> Iterator[Problem]:
    """The first `most` problems of each rule, then how many more there are."""
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.rule_id] += 1
        if counts[problem.rule_id] <= most:
            yield problem
    for rule, count in counts.items():
        if count > most:
            yield Problem(rule, f"{count - most:,} more of the kind", severity="warning")
