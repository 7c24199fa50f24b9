"""Memory by phase, and the page for "nothing fits"."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import Answer, Choice, MemoryGib, PredictAnswer, Prediction
from perfmodel.report.page import Column, Page

PART_TITLES = {
    "weights": "transformer weights",
    "text_encoder": "text encoder weights",
    "vae": "VAE weights",
    "activations": "activations",
    "workspace": "kernel workspace",
    "collectives": "communication buffers",
    "runtime": "context, allocator",
}
PART_NOTES = {"weights": "split by tp, pp or hsdp"}
POOLING = "does not pool"
POOLING_NOTE = (
    "Memory does not pool: Ulysses, ring and CFG keep all weights on every GPU; only tp, pp and "
    "hsdp split them."
)


def add_memory(page: Page, prediction: Prediction) -> None:
    """Parts by phase on the rank with the highest peak; ``<-`` marks what decides.

    Where it is not sure to fit, two more lines lead from the peak to what is needed.
    """
    phases = _phases(prediction)
    if not phases:
        return
    parts = [name for name in PART_TITLES if _is_used(prediction, name)]
    short = prediction.fit_status in ("tight", "no") and _given_back(prediction)
    ends = ["peak", *(("given back if short", "needed") if short else ())]
    page.table(
        [
            Column("per GPU, GiB", [*(PART_TITLES[name] for name in parts), *ends], right=False),
            *(_phase_column(prediction, phase, parts, short) for phase in phases),
            Column(
                "",
                [*(PART_NOTES.get(name, "") for name in parts), *("" for _ in ends)],
                right=False,
                drop=1,
                drop_zero=True,
            ),
        ]
    )
    if prediction.host_memory_gib is not None:
        page.paragraph(f"host RAM {words.gib(prediction.host_memory_gib)} GiB", indent=2)


def needed_phase(prediction: Prediction) -> str | None:
    """The phase that needs most; None where that is not known."""
    needed = prediction.required_by_phase_gib
    values = {p: v for p in words.PHASES if (v := getattr(needed, p, None)) is not None}
    return max(values, key=lambda phase: values[phase]) if values else None


def _given_back(prediction: Prediction) -> bool:
    """Whether the allocator holds blocks that it would give back."""
    pairs = (
        (getattr(prediction.memory_by_phase_gib, p, None), _needed(prediction, p))
        for p in words.PHASES
    )
    return any(words.gib(whole) != words.gib(least) for whole, least in pairs if least is not None)


def _needed(prediction: Prediction, phase: str) -> float | None:
    found: float | None = getattr(prediction.required_by_phase_gib, phase, None)
    return found


def _phases(prediction: Prediction) -> list[str]:
    if prediction.memory_parts_gib:
        return [phase for phase in words.PHASES if phase in prediction.memory_parts_gib]
    return [prediction.peak_phase] if prediction.memory_gib and prediction.peak_phase else []


def _parts_of(prediction: Prediction, phase: str) -> MemoryGib | None:
    return prediction.memory_parts_gib.get(phase) or prediction.memory_gib


def _is_used(prediction: Prediction, part: str) -> bool:
    phases = _phases(prediction)
    return any(getattr(_parts_of(prediction, phase), part, None) for phase in phases)


def _phase_column(prediction: Prediction, phase: str, parts: Sequence[str], short: bool) -> Column:
    values = _parts_of(prediction, phase)
    cells = [words.gib(getattr(values, part, None)) for part in parts]
    is_peak = phase == prediction.peak_phase
    total = getattr(prediction.memory_by_phase_gib, phase, None)
    if total is None and is_peak:
        total = prediction.peak_memory_gib
    cells.append(words.gib(total))
    if short and total is not None and (least := _needed(prediction, phase)) is not None:
        cells += [words.gib(least - total), words.gib(least)]
    mark = " <-" if phase == (needed_phase(prediction) if short else prediction.peak_phase) else ""
    padded = [cell + " " * len(mark) for cell in cells[:-1]]
    return Column(words.stage_title(phase), [*padded, cells[-1] + mark])


def add_no_fit(page: Page, answer: Answer) -> None:
    """NOTHING FITS: by how much, where, and what would."""
    usable = answer.system.usable_gib if answer.system else None
    found = answer.combinations
    legal = f"{found.legal:,} legal configurations; " if found else ""
    which = "all need"
    if found and found.fitting and answer.system:
        fewer = f"{found.fitting:,} of fewer GPUs fit{'s' if found.fitting == 1 else ''}"
        which = f"{fewer}, those of all {answer.system.num_gpus:,} need"
    page.blank()
    page.paragraph(
        f"{legal}{which} more than the {words.gib(usable)} GiB usable on a GPU.",
        "NOTHING FITS   ",
    )
    if answer.nearest_miss:
        add_miss(page, answer, answer.nearest_miss)
    add_would_fit(page, answer)


def add_miss(page: Page, answer: Answer | PredictAnswer, miss: Prediction) -> None:
    """What the nearest configuration needs, with the memory table."""
    over = f", {words.gib(answer.over_gib)} GiB too much" if answer.over_gib is not None else ""
    at = needed_phase(miss) or miss.peak_phase
    phase = f" ({words.stage_title(at)})" if at else ""
    needed = miss.required_memory_gib
    needed = miss.peak_memory_gib if needed is None else needed
    text = f"{miss.config_id} needs {words.gib(needed)} GiB a GPU{phase}{over}"
    own = [note for note in answer.fit_notes if note.startswith(miss.config_id)]
    page.paragraph(" ".join(own) or text, "NEAREST MISS   ")
    page.blank()
    add_memory(page, miss)
    if not any(POOLING in note for note in answer.fit_notes):
        page.paragraph(POOLING_NOTE, indent=2)


def add_would_fit(page: Page, answer: Answer | PredictAnswer) -> None:
    """Changes after which it would fit, and those after which it may, least change first."""
    tight = [choice for choice in answer.would_fit if choice.fit_status == "tight"]
    sure = [choice for choice in answer.would_fit if choice not in tight]
    for choices, label, text in (
        (sure, "WOULD FIT, ", "least change first"),
        (tight, "MAY FIT, ", "tight: it runs if no more is needed than predicted"),
    ):
        if choices:
            page.blank()
            page.paragraph(text, label)
            page.table(_change_columns(choices))
    missed = answer.nearest_miss if isinstance(answer, Answer) else answer.prediction
    for note in answer.fit_notes:
        if missed is None or not note.startswith(missed.config_id):
            page.paragraph(note, indent=2)


def _change_columns(choices: Sequence[Choice]) -> list[Column]:
    return [
        Column("change", [_change(choice) for choice in choices], right=False),
        Column("needs", [_needs(choice) for choice in choices], right=False),
        Column(
            "request\nms",
            [f"~{words.milliseconds(c.latency_ms)}" if c.latency_ms else "-" for c in choices],
            drop_zero=True,
            drop=-1,
        ),
    ]


def _change(choice: Choice) -> str:
    return ", ".join(filter(None, (choice.title, choice.config_id)))


def _needs(choice: Choice) -> str:
    if choice.needs:
        return choice.needs
    device = f"{words.gib(choice.memory_gib)} GiB" if choice.memory_gib is not None else ""
    host = f"{words.number(choice.host_memory_gib)} GiB host RAM" if choice.host_memory_gib else ""
    return ", ".join(filter(None, (device, host)))
