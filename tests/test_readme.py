"""The README is the door: its commands run, its blocks say what they claim."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line for block in blocks("sh") for line in block.splitlines() if line.startswith("perfmodel ")
]
NEEDS_MORE = {
    # commands that need what an earlier command of the page made, or minutes of measuring
    "perfmodel verify --from sweep/results.jsonl": "tests/test_verify_from*.py run it on a sweep",
    "perfmodel verify --serve sweep/": "tests/test_verify_serve_runs.py runs it",
    "perfmodel bench --preset quick --out records/": "tests/test_bench_live.py runs it",
    "perfmodel calibrate --records records/ --device my-gpu": "tests/test_bench_live.py runs it",
    "perfmodel calibrate --runs my-runs.jsonl --out mine/calibration/engines": (
        "tests/test_calibrate_runs.py runs it"
    ),
}


@pytest.fixture
def source(tmp_path):
    """An empty folder with the data of the source that commands name."""
    (tmp_path / "calibration").symlink_to(ROOT / "calibration")
    return tmp_path


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in NEEDS_MORE])
def test_command_runs(command, source):
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=source,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("command", sorted(NEEDS_MORE))
def test_command_that_needs_more_is_still_a_command(command):
    assert command in COMMANDS
    name = shlex.split(command)[1]
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", name, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    flags = [word for word in shlex.split(command) if word.startswith("--")]
    assert all(flag in done.stdout for flag in flags)


def test_python_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_program_blocks_are_up_to_date():
    script = [sys.executable, str(ROOT / "tests" / "benchmarks" / "readme.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr or "run python tests/benchmarks/readme.py"
