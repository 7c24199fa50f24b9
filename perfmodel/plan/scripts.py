"""The scripts of a plan: a folder a run, one script for all, one for a batch system."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from math import ceil
from pathlib import Path
from shlex import quote

from perfmodel.errors import BadInput, Problem
from perfmodel.files import as_word
from perfmodel.report.plan_answer import PlanAnswer, PlanRun
from perfmodel.units import S_PER_MINUTE

SHEBANG = "#!/usr/bin/env bash\n"
HOSTS = re.compile(r"--nnodes[ =](\d+)")
PORT = re.compile(r"https?://(?:localhost|127\.0\.0\.1):(\d+)")
LIMIT_FACTOR = 6
"""A run is given up after so many times its expected minutes, and at least half an hour."""

LEAST_LIMIT_S = 1800.0
SEVERAL_HOSTS = (
    "# Start it on each of {hosts} hosts, from one folder that all of them see, with NODE_RANK=0\n"
    "# to {last} and MASTER_ADDR the address of the first, which measures; the others take part.\n"
)
SLACK = 2
"""A batch job asks for so many times the expected minutes."""


def write_scripts(answer: PlanAnswer, records: list[dict[str, object]], folder: Path) -> list[str]:
    """Write everything; what is there already (records of finished runs) stays.

    Args:
        answer: the plan.
        records: what each run asks for, in the run-record format.
        folder: made if it is not there.

    Returns:
        Names of the run folders.

    Raises:
        BadInput: the folder holds another plan, or cannot be written.
    """
    try:
        _refuse_other_plan(answer, folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = []
        for run, record in zip(answer.runs, records, strict=True):
            _write_run(answer, run, record, folder / run.run_id)
            names.append(run.run_id)
        _write(folder / "runner.py", _runner())
        _write(folder / "run_all.sh", _run_all(names, several_hosts(answer)), executable=True)
        _write(folder / "slurm.sh", _slurm(answer, names), executable=True)
        _write(folder / "plan.json", answer.model_dump_json(indent=1) + "\n")
    except OSError as error:
        message = f"--out {folder} cannot be written: {error.strerror}"
        raise BadInput(Problem("out", message, "--out", str(folder))) from None
    return names


def _refuse_other_plan(answer: PlanAnswer, folder: Path) -> None:
    """A folder with another plan is not mixed with this one; the same plan goes on."""
    path = folder / "plan.json"
    if not path.exists():
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        other, runs = held.get("answer_id"), [run["run_id"] for run in held.get("runs", ())]
    except (ValueError, AttributeError, TypeError, KeyError):
        other, runs = None, []
    if other != answer.answer_id or runs != [run.run_id for run in answer.runs]:
        message = (
            f"--out {folder} holds another plan ({other or 'unreadable'}); use another folder, "
            f"such as --out {as_word(Path(f'{folder}-{answer.answer_id}'))}, or remove {folder}"
        )
        raise BadInput(Problem("out", message, "--out", str(folder)))


def _write_run(answer: PlanAnswer, run: PlanRun, record: dict[str, object], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    commands = run.prediction.commands
    assert commands is not None
    job = {
        "run": run.run_id,
        "plan": answer.answer_id,
        "minutes": round(run.minutes, 1),
        "limit_s": max(LEAST_LIMIT_S, ceil(LIMIT_FACTOR * run.minutes) * S_PER_MINUTE),
        "hosts": _hosts(commands.serve or ""),
        "port": _port(commands.request or commands.benchmark or ""),
        "record": record,
    }
    output = "output.mp4" if _is_video(answer) else "response.json"
    changed = {"warmups": run.warmups, "repeats": run.repeats, "output": output}
    enter = 'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
    head = f"{SHEBANG}set -euo pipefail\n{enter}"
    _write(folder / "job.json", json.dumps(job, indent=1) + "\n")
    _write(folder / "serve.sh", f"{head}{commands.serve}\n", executable=True)
    _write(folder / "request.sh", f"{head}{commands.request}\n", executable=True)
    export = f"export PERFMODEL_JOB={quote(json.dumps(changed))}\n"
    _write(folder / "bench.sh", f"{head}{export}{commands.benchmark}\n", executable=True)


def _is_video(answer: PlanAnswer) -> bool:
    return bool(answer.workload and answer.workload.frames > 1)


def _hosts(text: str) -> int:
    found = HOSTS.search(text)
    return int(found[1]) if found else 1


def _port(text: str) -> int | None:
    found = PORT.search(text)
    return int(found[1]) if found else None


def _runner() -> str:
    return (Path(__file__).parent / "runner.py").read_text(encoding="utf-8")


def several_hosts(answer: PlanAnswer) -> int:
    """Hosts that the widest run of a plan spans."""
    commands = (run.prediction.commands for run in answer.runs)
    return max((_hosts(one.serve or "") for one in commands if one), default=1)


def _run_all(names: list[str], hosts: int) -> str:
    runs = "\n".join(f"  {quote(name)}" for name in names)
    return (
        f"{SHEBANG}"
        "# Runs what has no result yet; start it again after an interruption or a failure.\n"
        f"{SEVERAL_HOSTS.format(hosts=hosts, last=hosts - 1) if hosts > 1 else ''}"
        "set -euo pipefail\n"
        'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
        f"runs=(\n{runs}\n)\n"
        'exec python3 runner.py "${runs[@]}"\n'
    )


ONE_HOST = 'exec python3 runner.py "${runs[${SLURM_ARRAY_TASK_ID:?is set by sbatch}]}"\n'
ALL_HOSTS = (
    'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)\n'
    "export MASTER_ADDR\n"
    "# shellcheck disable=SC2016  # each task has a number of its own\n"
    "exec srun --ntasks-per-node=1 bash -c 'NODE_RANK=$SLURM_NODEID exec python3 runner.py \"$0\"' "
    '"${runs[${SLURM_ARRAY_TASK_ID:?is set by sbatch}]}"\n'
)


def _slurm(answer: PlanAnswer, names: list[str]) -> str:
    minutes = SLACK * max(run.minutes for run in answer.runs)
    nodes, gpus = _allocation(answer)
    runs = "\n".join(f"  {quote(name)}" for name in names)
    return (
        f"{SHEBANG}"
        f"#SBATCH --job-name=perfmodel-{answer.answer_id}\n"
        f"#SBATCH --array=0-{len(names) - 1}\n"
        f"#SBATCH --nodes={nodes}\n"
        f"#SBATCH --gpus-per-node={gpus}\n"
        "#SBATCH --exclusive\n"
        f"#SBATCH --time={_clock(minutes)}\n"
        "#SBATCH --output=slurm-%A_%a.log\n"
        "# Submit it from this folder: sbatch slurm.sh\n"
        "set -euo pipefail\n"
        'cd "${SLURM_SUBMIT_DIR:-.}"\n'
        f"runs=(\n{runs}\n)\n"
        f"{ALL_HOSTS if several_hosts(answer) > 1 else ONE_HOST}"
    )


def _allocation(answer: PlanAnswer) -> tuple[int, int]:
    """Hosts, and GPUs on each, that every run of a plan finds room on.

    A run that does not say that it spans hosts is on one, so all of its GPUs are there.
    """
    widths = [
        (run.prediction.num_gpus, _hosts(run.prediction.commands.serve or ""))
        for run in answer.runs
        if run.prediction.commands
    ]
    return several_hosts(answer), max((ceil(gpus / hosts) for gpus, hosts in widths), default=1)


def _clock(minutes: float) -> str:
    """``HH:MM:SS``, whole minutes."""
    hours, rest = divmod(ceil(minutes), round(timedelta(hours=1) / timedelta(minutes=1)))
    return f"{hours:02d}:{rest:02d}:00"


def _write(path: Path, text: str, executable: bool = False) -> None:
    path.write_text(text, encoding="utf-8")
    if executable:
        path.chmod(0o755)
