"""``perfmodel schema``: JSON Schema of what the commands print and of the files people write."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from perfmodel.errors import BadInput, Problem

HOMES = {
    "recommend": "perfmodel.report.answer:Answer",
    "predict": "perfmodel.report.answer:PredictAnswer",
    "compare": "perfmodel.report.answer:CompareAnswer",
    "plan": "perfmodel.report.plan_answer:PlanAnswer",
    "verify": "perfmodel.report.verify_answer:VerifyAnswer",
    "live": "perfmodel.report.live_answer:LiveAnswer",
    "validate": "perfmodel.report.validate_answer:ValidateAnswer",
    "show": "perfmodel.report.models_answer:ModelAnswer",
    "models-list": "perfmodel.report.models_answer:ModelsAnswer",
    "hardware-list": "perfmodel.report.hardware_answer:DevicesAnswer",
    "hardware-show": "perfmodel.report.hardware_answer:DeviceAnswer",
    "hardware-check": "perfmodel.report.hardware_answer:CheckAnswer",
    "hardware-detect": "perfmodel.report.hardware_answer:DetectAnswer",
    "explain": "perfmodel.report.explain_answer:TermsAnswer",
    "refusal": "perfmodel.report.asked:Refusal",
    "workload": "perfmodel.spec.workload:Workload",
    "options": "perfmodel.spec.workload:Options",
    "hardware": "perfmodel.spec.hardware:Device",
    "model": "perfmodel.spec.model:ModelSpec",
}
FILES = ("workload", "options", "hardware", "model")
"""What people write; all others are answers."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def names() -> list[str]:
    """What has a schema."""
    return [name for name, home in HOMES.items() if find_spec(home.partition(":")[0])]


def _complete(incomplete: str) -> list[str]:
    return [name for name in HOMES if name.startswith(incomplete)]


def command(
    name: Annotated[
        str | None, typer.Argument(help="recommend, predict, ...", autocompletion=_complete)
    ] = None,
) -> None:
    """JSON Schema of an answer or of an input file; without a name, what there is.

    Example: perfmodel schema recommend
    """
    from perfmodel.cli.streams import put

    if name is None:
        put("\n".join(names()) + "\n")
        return
    put(json.dumps(schema(name), indent=2) + "\n")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema called `name`.

    Raises:
        BadInput: there is none; the names are listed.
    """
    from pydantic import TypeAdapter

    from perfmodel.report.answer import Document
    from perfmodel.report.asked import Refusal

    legal = tuple(names())
    if name not in legal:
        raise BadInput(
            Problem(
                "schema",
                f'no schema "{name}"; legal: {", ".join(legal)}',
                field="NAME",
                value=name,
                legal_values=legal,
            )
        )
    module, _, attribute = HOMES[name].partition(":")
    kind = getattr(import_module(module), attribute)
    if name not in FILES and not issubclass(kind, (Document, Refusal)):
        kind = kind | Refusal
    found = TypeAdapter(kind).json_schema(mode="serialization")
    if name not in FILES:
        # fields are added within a major version: a reader must accept those it does not know
        for record in (found, *found.get("$defs", {}).values()):
            record.pop("additionalProperties", None)
    return {"$schema": DIALECT, **found}
