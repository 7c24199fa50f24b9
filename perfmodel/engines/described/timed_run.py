"""Run a program several times, and append a run record a run to a JSONL file (standard library).

The job is one JSON argument: argv, repeats, out, record, and timings: a JSON file of seconds that
the program writes about itself ("" when only the whole process is timed, its start included).
"""

import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

MS_PER_S = datetime.timedelta(seconds=1) / datetime.timedelta(milliseconds=1)


def timings_s(path: str) -> list[float]:
    """Seconds of the program's own runs, newest file content; empty when there is no file."""
    found = Path(path) if path else None
    if found is None or not found.is_file():
        return []
    values: list[float] = json.loads(found.read_text(encoding="utf-8"))
    return values


def main() -> int:
    """Run, time and record."""
    job = json.loads(sys.argv[1])
    for number in range(job["repeats"]):
        start = time.perf_counter()
        # Flags may name variables that tell the hosts of a run apart.
        argv = [os.path.expandvars(w) if w.startswith("--") else w for w in job["argv"]]
        code = subprocess.run(argv, check=False).returncode
        wall_ms = (time.perf_counter() - start) * MS_PER_S
        measured = {"process": wall_ms}
        inside = timings_s(job["timings"])
        if inside:
            measured["e2e"] = min(inside) * MS_PER_S
        record = {**job["record"], "exit_code": code, "measured_ms": measured}
        record["id"] = f"{record['id']}-{number}"
        # Of the hosts of a run, the first one records it.
        if os.environ.get("NODE_RANK", "0") == "0":
            with open(job["out"], "a", encoding="utf-8") as out:
                out.write(json.dumps(record) + "\n")
        print(json.dumps(measured))
        if code:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
