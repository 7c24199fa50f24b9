"""Tables of models: the list, and one model's tasks, weights, work and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.report.page import Column, Page
from perfmodel.units import GIB, GIGA, TERA

UNKNOWN = "-"
STAGE_WORDS = {
    "text_encode": "text encode",
    "vae_encode": "VAE encode",
    "denoise": "denoise",
    "vae_decode": "VAE decode",
}


def list_page(rows: Sequence[Mapping[str, Any]]) -> Page:
    """One row a model, as `cli.models` collects them."""
    page = Page()
    page.table(
        (
            _texts("id", rows, "slug"),
            _texts("family", rows, "family", drop=1),
            Column("tasks", [", ".join(row["tasks"]) for row in rows], right=False),
            Column("loaded\nbillion", [f"{row['params'] / GIGA:.1f}" for row in rows]),
            _texts("size*", rows, "size", right=True),
            _texts("frames*", rows, "frames", right=True),
            _texts("steps*", rows, "steps", right=True),
            _texts("guidance*", rows, "guidance", right=True),
        )
    )
    page.paragraph(
        "* of the first task. `perfmodel models show NAME` prints weights, work and sources; "
        "NAME may be a checkpoint id."
    )
    return page


def _texts(
    header: str,
    rows: Sequence[Mapping[str, Any]],
    key: str,
    *,
    right: bool = False,
    drop: int = 0,
) -> Column:
    return Column(header, [_cell(row[key]) for row in rows], right=right, drop=drop)


def _cell(value: object) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_page(document: Mapping[str, Any]) -> Page:
    """One model at one shape, as `cli.models` collects it."""
    page = Page()
    published = document["published_params"]
    stated = f"; published as {published}" if published else ""
    page.paragraph(
        f"{document['title']} ({document['hf_id']}), family {document['family']}{stated}"
    )
    if document["aliases"]:
        page.items(document["aliases"], label="also called ")
    page.blank()
    _tasks(page, document["tasks"])
    page.blank()
    _components(page, document["components"])
    page.blank()
    _work(page, document)
    page.blank()
    for note in (*document["notes"], *document["shape_notes"]):
        page.paragraph(note, indent=2)
    for source in document["sources"]:
        page.code(f"  {source}")
    return page


def import_page(document: Mapping[str, Any]) -> Page:
    """A model that was read from a directory: weights, work, and what no file said."""
    page = Page()
    page.paragraph(
        f"{document['title']}, family {document['family']}: {document['slug']} written to "
        f"{document['written']}"
    )
    page.blank()
    _components(page, document["components"])
    page.blank()
    _work(page, document)
    page.blank()
    template = document["template"]
    page.paragraph(f"Assumed as in {template}:" if template else "Assumed:")
    for note in document["taken_over"]:
        page.paragraph(note, indent=2)
    return page


def _tasks(page: Page, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [{"task": name, **task} for name, task in tasks.items()]
    size = [f"{row['width']}x{row['height']}" for row in rows]
    page.table(
        (
            _texts("task", rows, "task"),
            Column("size", size),
            *(
                _texts(header, rows, key, right=True)
                for header, key in (
                    ("frames", "frames"),
                    ("fps", "fps"),
                    ("steps", "steps"),
                    ("guidance", "guidance"),
                    ("flow\nshift", "flow_shift"),
                    ("text\ntokens", "text_tokens"),
                )
            ),
            _texts("condition", rows, "condition"),
        )
    )


def _components(page: Page, components: Sequence[Mapping[str, Any]]) -> None:
    needed = [", ".join(STAGE_WORDS[stage] for stage in row["when"]) for row in components]
    page.table(
        (
            _texts("weights", components, "name"),
            Column("parameters", [f"{row['params']:,}" for row in components]),
            Column("GiB", [f"{row['bytes'] / GIB:.2f}" for row in components]),
            Column("in blocks", [_cell(row["blocks"] or None) for row in components]),
            Column("split by tp", [f"{row['tp_params']:,}" for row in components], drop_zero=True),
            Column("needed in", needed, right=False, drop=1),
        )
    )


def _work(page: Page, document: Mapping[str, Any]) -> None:
    shape = document["shape"]
    page.paragraph(
        f"{shape['task']} {shape['width']}x{shape['height']}, {shape['frames']} frames: latent "
        f"{shape['latent_frames']}x{shape['latent_height']}x{shape['latent_width']}, "
        f"{shape['video_tokens']:,} tokens, {shape['text_tokens']:,} text tokens, "
        f"{shape['forwards']} forwards in {shape['steps']} steps"
    )
    stages = {stage: row for stage, row in document["flops"].items() if any(row.values())}
    page.table(
        (
            Column("work, TFLOP", [STAGE_WORDS[stage] for stage in stages], right=False),
            *(
                Column(kind, [f"{row[kind] / TERA:,.1f}" for row in stages.values()])
                for kind in ("gemm", "attention", "conv")
            ),
            Column("all", [f"{sum(row.values()) / TERA:,.1f}" for row in stages.values()]),
        )
    )
