"""``perfmodel compare``: the same question with one or more flags varied."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any

from perfmodel.cli import arrays, limits
from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import BY_KEY, COMMANDS, OUTPUT, PARALLEL, SEARCH, VARY, WORK
from perfmodel.cli.given import Given, Value
from perfmodel.errors import BadInput, MissingData, Problem, Refused

if TYPE_CHECKING:
    from perfmodel.report.answer import CompareAnswer, Document
    from perfmodel.report.asked import ProblemInfo

    Answered = tuple[Mapping[str, str], Document]

MOST_CASES = 256
SHOWN_CASES = 4
CASES = (*WORK, *SEARCH, *PARALLEL)


def _kind() -> type[Document]:
    from perfmodel.report.answer import CompareAnswer

    return CompareAnswer


@flag_command(*CASES, *VARY, *COMMANDS, *OUTPUT, kind=_kind)
def command(given: Given) -> int:
    """The same question side by side: other GPUs, models, lengths, dtypes, configurations.

    Example: perfmodel compare --frames 189 --vary gpus=4xB300,8xH200
    """
    started = time.perf_counter()
    arrays.load()
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.values import Collector

    collect = Collector()
    target = collect(lambda: read_target(given, commands=0))
    varied = collect(lambda: read_vary(given))
    collect.finish()
    assert target is not None
    assert varied is not None
    answer = side_by_side(given, varied)
    code = emit(answer, target, time.perf_counter() - started)
    return limits.of_cases(answer, given) if code == 0 else code


def side_by_side(given: Given, varied: dict[str, tuple[str, ...]]) -> CompareAnswer:
    """Every combination of the varied flags, answered and compared."""
    return compared(given, [(case, _answer(given, case)) for case in cases(varied)])


NO_MODEL = "model-not-in-engine"


def all_engines(given: Given) -> CompareAnswer:
    """Every engine that can run the model and be started from here, the fastest first.

    Where there is none, the projects around diffusers and Wan that have the model.  One that
    refuses for another reason keeps its row; where nothing has the model, all say so.
    """
    from perfmodel.engines import STARTED, engine_names

    able = _with_model(given, STARTED)
    others = [name for name in engine_names() if name not in STARTED]
    able = able or _with_model(given, others) or _answers(given, STARTED)
    return compared(given, sorted(able, key=lambda one: _request_ms(one[1])))


def _with_model(given: Given, names: Sequence[str]) -> list[Answered]:
    answered = _answers(given, names)
    return [one for one in answered if all(p.rule_id != NO_MODEL for p in one[1].problems)]


def _answers(given: Given, names: Sequence[str]) -> list[Answered]:
    from perfmodel.report.answer import refusal

    answered: list[Answered] = []
    for name in names:
        case = {"engine": name}
        try:
            answered.append((case, _answer(given, case)))
        except BadInput as error:
            # an option of one engine may mean nothing to another
            answered.append((case, refusal(error)))
    return answered


def _request_ms(document: Document) -> float:
    from perfmodel.api.compare import stay_ms
    from perfmodel.report.answer import Answer, PredictAnswer

    found = document.recommendations[:1] if isinstance(document, Answer) else ()
    if isinstance(document, PredictAnswer) and document.prediction:
        found = (document.prediction,)
    return min((stay_ms(one) or inf for one in found), default=inf)


def compared(given: Given, answered: Sequence[Answered]) -> CompareAnswer:
    """The answers of one question's cases beside each other."""
    from perfmodel import api

    answer = api.compare(name_cases(answered))
    return answer.model_copy(update={"command": given.again()})


def name_cases(answered: Sequence[Answered]) -> list[Answered]:
    """Warnings that do not hold for all cases say for which they do."""
    held: dict[ProblemInfo, list[str]] = {}
    for case, document in answered:
        name = ", ".join(f"{BY_KEY[key].name}={value}" for key, value in case.items())
        for warning in dict.fromkeys(document.warnings):
            held.setdefault(warning, []).append(name)
    named = {
        warning: warning.model_copy(update={"message": f"{_named(names)}: {warning.message}"})
        for warning, names in held.items()
        if len(names) < len(answered)
    }
    return [
        (case, document.model_copy(update={"warnings": _replaced(document.warnings, named)}))
        for case, document in answered
    ]


def _named(names: list[str]) -> str:
    more = len(names) - SHOWN_CASES
    return "; ".join(names[:SHOWN_CASES]) + (f" and {more} more" if more > 0 else "")


def _replaced(
    warnings: tuple[ProblemInfo, ...], named: dict[ProblemInfo, ProblemInfo]
) -> tuple[ProblemInfo, ...]:
    return tuple(named.get(warning, warning) for warning in warnings)


def read_vary(given: Given) -> dict[str, tuple[str, ...]]:
    """Flag keys and the values to try, in the order given.

    Raises:
        BadInput: nothing varied, unknown flags, or no values; all problems.
    """
    problems: list[Problem] = []
    varied: dict[str, tuple[str, ...]] = {}
    for text in given.many("vary"):
        name, _, values = text.partition("=")
        key = name.strip().removeprefix("--").replace("-", "_")
        parts = tuple(part.strip() for part in _split(key, values))
        if key not in {flag.key for flag in CASES}:
            problems.append(_unknown(name.strip()))
        elif not all(parts):
            what = "has an empty value" if any(parts) else "names no values"
            problems.append(
                Problem(
                    "vary",
                    f'--vary "{text}" {what}; try --vary {BY_KEY[key].name}=V1,V2',
                    field="--vary",
                    value=text,
                )
            )
        else:
            varied[key] = (*varied.get(key, ()), *parts)
    if not varied and not problems:
        problems.append(
            Problem(
                "vary",
                "nothing is varied; try --vary gpus=4xB300,8xH200 or --vary dtype=bf16,fp8",
                field="--vary",
            )
        )
    if problems:
        raise BadInput(*problems)
    return varied


def _split(key: str, values: str) -> list[str]:
    # commas belong to a --parallel value, so its alternatives are parted by semicolons or are ids
    if key == "parallel" and "=" in values:
        return values.split(";")
    return values.split(",")


def _unknown(name: str) -> Problem:
    from difflib import get_close_matches

    names = [flag.name for flag in CASES]
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else "any flag of recommend can vary"
    return Problem(
        "vary",
        f'"{name}" in --vary is no flag; {hint}',
        field="--vary",
        value=name,
        suggestions=tuple(near),
    )


def cases(varied: dict[str, tuple[str, ...]]) -> list[dict[str, str]]:
    """Every combination of the varied values; the last flag varies fastest.

    Raises:
        BadInput: too many.
    """
    combined = [dict(zip(varied, values, strict=True)) for values in product(*varied.values())]
    if len(combined) > MOST_CASES:
        raise BadInput(
            Problem(
                "vary",
                f"--vary gives {len(combined):,} cases; at most {MOST_CASES} are compared",
                field="--vary",
                value=str(len(combined)),
            )
        )
    return combined


def _answer(given: Given, case: dict[str, str]) -> Document:
    """One case; a configuration that is illegal there keeps its row, bad input stops all."""
    from perfmodel.report.answer import refusal

    changes: dict[str, Value] = {
        key: text.lower() in ("on", "true", "yes") if BY_KEY[key].kind == "switch" else text
        for key, text in case.items()
        if BY_KEY[key].kind != "list"
    }
    lists: dict[str, Value] = {
        key: (*given.many(key), text) for key, text in case.items() if BY_KEY[key].kind == "list"
    }
    try:
        return _one({**changes, **lists}, given)
    except (Refused, MissingData) as error:
        return refusal(error)


def _one(changes: dict[str, Value], given: Given) -> Document:
    from perfmodel import api
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.launched import with_open_points
    from perfmodel.cli.predict import read_extra

    this = given.with_values(changes)
    inputs = read_inputs(this)
    settings: dict[str, Any] = dict(inputs.settings)
    if this.text("parallel") or this.launch:
        for key in ("objective", "max_latency_ms", "top", "allow_lossy", "use_all_gpus"):
            settings.pop(key, None)
        settings.update(read_extra(this))
        answer = api.predict(inputs.workload, inputs.system, options=inputs.options, **settings)
        return with_open_points(answer, settings.get("launch"), settings.get("engine"))
    return api.recommend(inputs.workload, inputs.system, options=inputs.options, **settings)
