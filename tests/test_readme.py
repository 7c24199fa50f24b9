"""The README is the door: its commands run, its blocks say what they claim."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line for block in blocks("sh") for line in block.splitlines() if line.startswith("perfmodel ")
]
NEEDS_MORE = {
    # commands that need what an earlier command of the page made, or minutes of measuring
    "perfmodel verify --from sweep/results.jsonl": "tests/test_verify_from*.py run it on a sweep",
    "perfmodel bench --preset quick --out records/": "tests/test_bench_live.py runs it",
    "perfmodel calibrate --records records/ --device my-gpu": "tests/test_bench_live.py runs it",
}


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in NEEDS_MORE])
def test_command_runs(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
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


def test_shown_output_is_what_the_first_command_prints():
    """All but the run time of the last line, which is not reproducible."""
    (shown,) = re.findall(r"<!-- output -->\n```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "recommend", "--gpus", "4xB300", "--frames", "189"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    def stable(text: str) -> str:
        return re.sub(r"\s*\([\d.]+ s\)\s*$", "", text).strip()

    assert stable(shown) == stable(done.stdout)


def test_ci_runs_the_same_test_command():
    script = (Path(__file__).parent.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "<!-- tests -->" in script
    assert "README.md" in script
    (command,) = re.findall(r"<!-- tests -->\n```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert "pytest" in command
    assert ".[dev]" in command
