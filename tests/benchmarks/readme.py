"""Writes the blocks of README.md that come from the program: the first answer and the accuracy.

python tests/benchmarks/readme.py          # rewrite
python tests/benchmarks/readme.py --check  # exit 1 when a block is out of date
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from perfmodel import catalog
from perfmodel.cost.fits import has_kernels
from perfmodel.report.validate_answer import RecordDetail, ValidateAnswer
from perfmodel.spec.record import END_TO_END_KEYS
from perfmodel.validate.runs import validate_runs
from perfmodel.validate.scores import errors

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"
RUNS = ROOT / "calibration" / "runs" / "public.jsonl"
RECOMMEND = ["recommend", "--gpus", "4xB300", "--frames", "189"]
HEADER = """| measured runs | rows | median error | mean error | 9 of 10 below | bias |
|---|---|---|---|---|---|
"""

Test = Callable[[RecordDetail], bool]


def first_answer() -> str:
    """Standard output of the first command of the page."""
    command = [sys.executable, "-m", "perfmodel", *RECOMMEND]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def accuracy() -> str:
    """Table and sentence of the accuracy section."""
    answer = validate_runs([RUNS])
    rows = [line for name, pairs in table(answer) if (line := row(name, pairs))]
    summary = answer.sweep_summary
    coverage, held = answer.predicted / answer.records, answer.interval_coverage or 0.0
    said = f"""Of {answer.records} records {answer.predicted} can be predicted ({coverage:.0%});
        {answer.scored} are not doubtful and are scored. The 80 % ranges held {held:.0%} of the
        measured values. In the {summary.n} sweeps of three or more layouts our pick cost
        {summary.mean_top1_regret_pct:.1f} % over the best measured on average, at most
        {summary.max_top1_regret_pct:.1f} %; {summary.best_or_tie} times of {summary.n} the best was
        our pick or its stated tie."""
    return f"{HEADER}{''.join(rows)}\n{textwrap.fill(' '.join(said.split()), 100)}\n"


def table(answer: ValidateAnswer) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """(name, (predicted, measured) pairs) of each row."""
    rows = [one for one in answer.records_detail if not one.doubtful]
    fitted = {name for name in {one.gpu for one in rows} if has_fit(name)}
    video = videos()

    def ours(one: RecordDetail) -> bool:
        return one.engine == "vllm-omni" and one.gpu in fitted

    yield (
        "vLLM-Omni, fitted devices: request, video",
        pairs(rows, END_TO_END_KEYS, lambda one: ours(one) and one.id in video),
    )
    yield (
        "vLLM-Omni, fitted devices: request, image",
        pairs(rows, END_TO_END_KEYS, lambda one: ours(one) and one.id not in video),
    )
    yield "vLLM-Omni, fitted devices: denoise", pairs(rows, ("denoise", "denoise_per_step"), ours)
    yield (
        "other engines, fitted devices: request, video",
        pairs(
            rows,
            END_TO_END_KEYS,
            lambda one: one.engine != "vllm-omni" and one.gpu in fitted and one.id in video,
        ),
    )
    yield (
        "other engines, fitted devices: request, image",
        pairs(
            rows,
            END_TO_END_KEYS,
            lambda one: one.engine != "vllm-omni" and one.gpu in fitted and one.id not in video,
        ),
    )
    yield (
        "devices without a fit: request",
        pairs(rows, END_TO_END_KEYS, lambda one: one.gpu not in fitted),
    )
    yield "all: VAE decode", pairs(rows, ("vae_decode",), lambda one: True)
    yield "vLLM-Omni: peak memory", memory(rows, lambda one: one.engine == "vllm-omni")
    yield "other engines: peak memory", memory(rows, lambda one: one.engine != "vllm-omni")


def has_fit(gpu: str) -> bool:
    """Whether the device has kernel laws of its own."""
    return has_kernels(catalog.load_fit(gpu))


def videos() -> set[str]:
    """Ids of the runs that make more than one frame."""
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    return {one["id"] for one in map(json.loads, lines) if (one.get("frames") or 1) > 1}


def pairs(
    rows: Sequence[RecordDetail], keys: Sequence[str], chosen: Test
) -> list[tuple[float, float]]:
    """One pair a row: its first key among `keys`."""
    found = []
    for one in rows:
        key = next((key for key in keys if key in one.predicted_ms), None)
        if key and chosen(one):
            found.append((one.predicted_ms[key], one.measured_ms[key]))
    return found


def memory(rows: Sequence[RecordDetail], chosen: Test) -> list[tuple[float, float]]:
    """Peak memory of the rows that state it."""
    return [one.peak_memory_mib for one in rows if one.peak_memory_mib and chosen(one)]


def row(name: str, found: list[tuple[float, float]]) -> str | None:
    """One line of the table."""
    said = errors(found)
    if said is None:
        return None
    numbers = (said.median_ape, said.mape, said.p90_ape)
    cells = [name, str(said.n), *(f"{n:.1f} %" for n in numbers), f"{said.bias:+.1f} %"]
    return f"| {' | '.join(cells)} |\n"


def fill(text: str, marker: str, block: str) -> str:
    """`text` with what lies between ``<!-- marker -->`` and ``<!-- /marker -->`` replaced."""
    pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.DOTALL)
    assert pattern.search(text), f"README.md has no block {marker}"
    return pattern.sub(lambda match: match[1] + block + match[2], text)


def stable(text: str) -> str:
    """Without run times, which are not reproducible."""
    return re.sub(r"\([\d.]+ s\)", "", text)


def main() -> int:
    """Rewrite or check."""
    old = README.read_text(encoding="utf-8")
    new = fill(old, "output", f"```text\n{first_answer()}```\n")
    new = fill(new, "accuracy", accuracy())
    if "--check" in sys.argv:
        return int(stable(old) != stable(new))
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
