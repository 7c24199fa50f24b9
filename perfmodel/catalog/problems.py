"""What is wrong with a file, in one line a problem."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from perfmodel.errors import BadInput, Problem

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], data: object, label: str, rule_id: str) -> Model:
    """`data` as `model`.

    Raises:
        BadInput: every problem of the file, each naming file and field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadInput(*problems_of(error, model, label, rule_id)) from None


def problems_of(
    error: ValidationError, model: type[BaseModel], label: str, rule_id: str
) -> tuple[Problem, ...]:
    """Pydantic's findings as problems: value, file and field, and what would be right."""
    return tuple(_problem(item, model, label, rule_id) for item in error.errors(include_url=False))


def _problem(item: Any, model: type[BaseModel], label: str, rule_id: str) -> Problem:
    field = ".".join(str(part) for part in item["loc"]) or "file"
    value = item["input"]
    kind = item["type"]
    legal: tuple[str, ...] = ()
    if kind == "extra_forbidden":
        legal = _fields_at(model, item["loc"][:-1])
        what = f'unknown field "{item["loc"][-1]}"{_nearest(str(item["loc"][-1]), legal)}'
    elif kind == "missing":
        what = "this field is missing"
    elif kind in ("float_type", "float_parsing", "int_type", "int_parsing", "int_from_float"):
        whole = " whole" if kind.startswith("int") else ""
        what = f"{_shown(value)} is not a{whole} number; {_number_hint(value)}"
    elif kind == "value_error":
        what = str(item["msg"]).removeprefix("Value error, ")
    else:
        what = f"{_shown(value)}: {str(item['msg'])[:1].lower()}{str(item['msg'])[1:]}"
    return Problem(
        rule_id,
        f"{label}: {field}: {what}",
        field=f"{label}: {field}",
        value=None if isinstance(value, (dict, list)) else str(value),
        legal_values=legal,
    )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'the text "{value}"'
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"{str(value).lower()}" if isinstance(value, bool) or value is None else f"{value}"


def _number_hint(value: object) -> str:
    if isinstance(value, str):
        try:
            return f"YAML reads it as text, write {float(value):.6e}".replace("0000e", "e")
        except ValueError:
            pass
    return "write it like 3.35e+12"


def _nearest(name: str, legal: tuple[str, ...]) -> str:
    near = get_close_matches(name, legal, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ";"
    return f"{hint} fields: {', '.join(legal)}" if legal else ""


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> tuple[str, ...]:
    """Legal field names of the mapping at `path`, empty where any name is legal."""
    here: Any = model
    for part in path:
        if isinstance(here, type) and issubclass(here, BaseModel):
            info = here.model_fields.get(str(part))
            here = info.annotation if info is not None else None
        else:
            here = next(iter(_models_in(here)), None)
        found = _models_in(here)
        if not (isinstance(here, type) and issubclass(here, BaseModel)) and len(found) == 1:
            here = found[0] if not _is_mapping(here) else here
    if isinstance(here, type) and issubclass(here, BaseModel):
        return tuple(here.model_fields)
    return ()


def _is_mapping(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
