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
    """Parts by phase on the rank with the highest peak; ``<-`` marks the peak."""
    phases = _phases(prediction)
    if not phases:
        return
    parts = [name for name in PART_TITLES if _is_used(prediction, name)]
    page.table(
        [
            Column("per GPU, GiB", [*(PART_TITLES[name] for name in parts), "peak"], right=False),
            *(_phase_column(prediction, phase, parts) for phase in phases),
            Column(
                "",
                [*(PART_NOTES.get(name, "") for name in parts), ""],
                right=False,
                drop=1,
                drop_zero=True,
            ),
        ]
    )
    if prediction.host_memory_gib is not None:
        page.paragraph(f"host RAM {words.gib(prediction.host_memory_gib)} GiB", indent=2)


def _phases(prediction: Prediction) -> list[str]:
    if prediction.memory_parts_gib:
        return [phase for phase in words.PHASES if phase in prediction.memory_parts_gib]
    return [prediction.peak_phase] if prediction.memory_gib and prediction.peak_phase else []


def _parts_of(prediction: Prediction, phase: str) -> MemoryGib | None:
    return prediction.memory_parts_gib.get(phase) or prediction.memory_gib


def _is_used(prediction: Prediction, part: str) -> bool:
    phases = _phases(prediction)
    return any(getattr(_parts_of(prediction, phase), part, None) for phase in phases)


def _phase_column(prediction: Prediction, phase: str, parts: Sequence[str]) -> Column:
    values = _parts_of(prediction, phase)
    cells = [words.gib(getattr(values, part, None)) for part in parts]
    is_peak = phase == prediction.peak_phase
    total = getattr(prediction.memory_by_phase_gib, phase, None)
    if total is None and is_peak:
        total = prediction.peak_memory_gib
    mark = " <-" if is_peak else ""
    padded = [cell + " " * len(mark) for cell in cells]
    return Column(words.stage_title(phase), [*padded, words.gib(total) + mark])


def add_no_fit(page: Page, answer: Answer) -> None:
    """NOTHING FITS: by how much, where, and what would."""
    usable = answer.system.usable_gib if answer.system else None
    legal = f"{answer.combinations.legal:,} legal configurations; " if answer.combinations else ""
    page.blank()
    page.paragraph(
        f"{legal}all need more than the {words.gib(usable)} GiB usable on a GPU.",
        "NOTHING FITS   ",
    )
    if answer.nearest_miss:
        add_miss(page, answer, answer.nearest_miss)
    add_would_fit(page, answer)


def add_miss(page: Page, answer: Answer | PredictAnswer, miss: Prediction) -> None:
    """What the nearest configuration needs, with the memory table."""
    over = f", {words.gib(answer.over_gib)} GiB too much" if answer.over_gib is not None else ""
    phase = f" ({words.stage_title(miss.peak_phase)})" if miss.peak_phase else ""
    needed = miss.peak_memory_gib
    if answer.over_gib is not None and answer.system and answer.system.usable_gib:
        needed = answer.system.usable_gib + answer.over_gib
    text = f"{miss.config_id} needs {words.gib(needed)} GiB a GPU{phase}{over}"
    if needed and miss.peak_memory_gib and miss.peak_memory_gib > needed:
        text += "; the peak below also holds blocks that the allocator would give back"
    own = [note for note in answer.fit_notes if note.startswith(miss.config_id)]
    page.paragraph(" ".join(own) or text, "NEAREST MISS   ")
    page.blank()
    add_memory(page, miss)
    if not any(POOLING in note for note in answer.fit_notes):
        page.paragraph(POOLING_NOTE, indent=2)


def add_would_fit(page: Page, answer: Answer | PredictAnswer) -> None:
    """Changes after which it would fit, least change first."""
    if answer.would_fit:
        page.blank()
        page.paragraph("least change first", "WOULD FIT, ")
        page.table(_change_columns(answer.would_fit))
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
