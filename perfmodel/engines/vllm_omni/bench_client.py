"""Measure one request against a running vLLM-Omni server; standard library only.

The source of this file is what ``commands.benchmark`` prints: it is sent to python as it stands.
It takes one JSON argument (the job), does the warm-ups, then the measured requests, and appends one
run record (a JSON object in a line) to the file that the job names.  Times are milliseconds.
The variable PERFMODEL_JOB may hold keys that replace those of the job, such as repeats.  A request
that fails is a record too: its HTTP status and what the server said, without times.
"""

import concurrent.futures
import datetime
import json
import os
import statistics
import sys
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

STAGES = {
    ".forward": "pipeline_forward",
    ".diffuse": "denoise",
    ".vae.encode": "vae_encode",
    ".vae.decode": "vae_decode",
    ".text_encoder.forward": "text_encode",
}
SAID_CHARACTERS = 500
READY_POLL_S = 0.2
MS_PER_S = datetime.timedelta(seconds=1) / datetime.timedelta(milliseconds=1)


def multipart(fields: dict[str, str], uploads: dict[str, str]) -> tuple[bytes, str]:
    """A form body and its content type."""
    mark = uuid.uuid4().hex
    parts = []
    for name, value in fields.items():
        head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
        parts.append(head.encode() + value.encode() + b"\r\n")
    for name, path in uploads.items():
        with open(path, "rb") as upload:
            body = upload.read()
        head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; '
        head += f'filename="{os.path.basename(path)}"\r\n'
        kind = "video/mp4" if path.endswith(".mp4") else "image/png"
        parts.append((head + f"Content-Type: {kind}\r\n\r\n").encode() + body + b"\r\n")
    parts.append(f"--{mark}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={mark}"


def stages_ms(durations: dict[str, float]) -> dict[str, float]:
    """Profiler names (``<Pipeline>.vae.decode``, seconds) to record keys, milliseconds."""
    found: dict[str, float] = {}
    for name, seconds in durations.items():
        suffix = "." + name.partition(".")[2]
        if suffix in STAGES:
            found[STAGES[suffix]] = found.get(STAGES[suffix], 0.0) + seconds * MS_PER_S
    return found


def send(job: dict[str, Any]) -> dict[str, Any]:
    """One request.

    Returns:
        ``times`` by record key, ``status``, ``headers`` (those that begin with X-), ``peak``: the
        server's peak memory in MiB or None, and ``error``: what went wrong or None.
    """
    if job["form"]:
        body, kind = multipart(job["fields"], job["uploads"])
    else:
        body, kind = json.dumps(job["fields"]).encode(), "application/json"
    request = urllib.request.Request(job["url"], data=body, headers={"Content-Type": kind})
    start = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=job["timeout_s"]) as answer:
            payload, headers, status = answer.read(), answer.headers, answer.status
    except urllib.error.HTTPError as error:
        said = error.read().decode("utf-8", "replace")[:SAID_CHARACTERS]
        return {"status": error.code, "error": f"HTTP {error.code}: {said}"}
    except OSError as error:
        return {"status": None, "error": f"no answer: {error}"}
    times = {"client": (time.perf_counter() - start) * MS_PER_S}
    if job.get("output"):
        with open(job["output"], "wb") as out:
            out.write(payload)
    if headers.get("X-Inference-Time-S"):
        times["server"] = float(headers["X-Inference-Time-S"]) * MS_PER_S
    peak = headers.get("X-Peak-Memory-MB")
    durations = json.loads(headers.get("X-Stage-Durations") or "{}")
    if not job["form"] or "json" in (headers.get("Content-Type") or ""):
        metrics = json.loads(payload).get("metrics") or {}
        durations, peak = metrics.get("stage_durations") or {}, metrics.get("peak_memory_mb")
    times.update(stages_ms(durations))
    shown = {name: value for name, value in headers.items() if name.lower().startswith("x-")}
    peak = float(peak) if peak else None
    return {"times": times, "status": status, "headers": shown, "peak": peak, "error": None}


def send_at_once(job: dict[str, Any]) -> dict[str, Any]:
    """As many requests together as the job has in flight; the first writes the output.

    Returns:
        As `send`, with the mean of each time and the most memory, or the first that failed.
    """
    later = {**job, "output": None}
    jobs = [job, *[later] * (job["in_flight"] - 1)]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(send, jobs))
    failed = [answer for answer in answers if answer["error"]]
    if failed or len(answers) == 1:
        return (failed or answers)[0]
    times = [answer["times"] for answer in answers]
    keys = [key for key in times[0] if all(key in each for each in times)]
    mean = {key: statistics.fmean(each[key] for each in times) for key in keys}
    peaks = [answer["peak"] for answer in answers if answer["peak"]]
    return {**answers[0], "times": mean, "peak": max(peaks, default=None)}


def wait_for(url: str, patience_s: float) -> None:
    """Return when the server answers its health route."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise SystemExit("no server at " + url) from None
            time.sleep(READY_POLL_S)


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Median, least and most of each time."""
    measured: dict[str, float] = {}
    for key in rows[0]:
        values = [row[key] for row in rows if key in row]
        measured[key] = round(statistics.median(values), 3)
        measured[key + "_min"] = round(min(values), 3)
        measured[key + "_max"] = round(max(values), 3)
    return measured


def append(job: dict[str, Any], found: dict[str, Any]) -> None:
    """The run record: what was asked, what was found, the day."""
    record = {**job["record"], **found, "source_date": datetime.date.today().isoformat()}
    with open(job["out"], "a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")
    print("record added to", job["out"])


def main() -> None:
    """Warm up, measure, append the record."""
    job = json.loads(sys.argv[1])
    job.update(json.loads(os.environ.get("PERFMODEL_JOB") or "{}"))
    wait_for(job["health"], job["patience_s"])
    answers = []
    for number in range(job["warmups"] + job["repeats"]):
        answer = send_at_once(job) if number >= job["warmups"] else send(job)
        if answer["error"]:
            failure = {"http_status": answer["status"], "error": answer["error"]}
            append(job, {"measured_ms": {}, **failure})
            raise SystemExit(answer["error"])
        if number >= job["warmups"]:
            answers.append(answer)
            sent = f"{job['in_flight']} requests" if job["in_flight"] > 1 else "request"
            print(f"{sent} {len(answers)}: {answer['times']}", flush=True)
    last = answers[-1]
    found: dict[str, Any] = {
        "measured_ms": summary([answer["times"] for answer in answers]),
        "repeats": job["repeats"],
        "http_status": last["status"],
        "server_headers": last["headers"],
    }
    if job.get("output"):
        found["output_file"] = os.path.abspath(job["output"])
    peaks = [answer["peak"] for answer in answers if answer["peak"]]
    if peaks:
        found.update(peak_memory_mib=max(peaks), memory_kind="reserved")
    append(job, found)


if __name__ == "__main__":
    main()
