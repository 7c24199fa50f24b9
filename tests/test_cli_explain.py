"""The glossary, and `explain`."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import report_samples as samples

import perfmodel
from perfmodel.cli.app import run
from perfmodel.cli.explain import all_entries
from perfmodel.engines import engine
from perfmodel.errors import BadInput
from perfmodel.report.glossary import explain, folded, glossary, term_entries
from perfmodel.report.memory_page import PART_TITLES
from perfmodel.report.words import STAGES
from perfmodel.search.explain import AXIS_NAMES
from perfmodel.spec.parallel import KEYS
from perfmodel.spec.workload import Options
from perfmodel.verify.titles import COLLECTIVES


@pytest.fixture(scope="module")
def entries():
    return all_entries()


def test_every_axis_stage_option_and_rule_is_explained(entries):
    terms = [*KEYS, *STAGES, *Options.model_fields]
    terms += [rule.id for rule in engine().rules()]
    for term in terms:
        assert explain(term, entries), term


@pytest.mark.parametrize("part", ["usp", "vaepp", "hsdp", "cfg", "ring", "tp", "tiling"])
def test_parts_of_an_id_are_explained(entries, part):
    assert explain(part, entries)[0].kind in ("axis", "option")


def test_columns_of_the_contract_are_explained(entries):
    for name in (
        "latency_ms",
        "peak_memory_gib",
        "fit_status",
        "provenance_share",
        "basis_share",
        "extrapolated_share",
        "reserved_gib",
        "speedup_loss_ms",
        "requests_per_hour",
        "tied_with_best",
        "pipeline_forward_ms",
        "first_request_ms",
        "denoise_per_step_ms",
    ):
        assert explain(name, entries), name
        assert name in samples.answer().recommendations[0].model_dump()


def test_names_are_unique_within_the_glossary():
    seen: dict[str, str] = {}
    for entry in glossary():
        for name in {folded(name) for name in (entry.term, *entry.aliases)}:
            assert seen.setdefault(name, entry.term) == entry.term, name
        assert entry.text.rstrip().endswith("."), entry.term


def test_case_dashes_and_spaces_do_not_matter(entries):
    assert explain("VAE Decode", entries)[0].term == "vae_decode"
    assert explain("ULYSSES-DEGREE", entries)[0].term == "ulysses"


@pytest.mark.parametrize("term", ["ulyses", "zzzzzzzz", "", "%%"])
def test_unknown_terms_name_the_nearest(entries, term):
    with pytest.raises(BadInput) as caught:
        explain(term, entries)
    (problem,) = caught.value.problems
    assert ("ulysses" in problem.suggestions) is (term == "ulyses")


def test_terms_show_their_value_bounds_and_provenance():
    document = {
        "terms": {
            "x_s": {
                "value": 2e-5,
                "low": 1e-5,
                "high": 5e-5,
                "unit": "s",
                "provenance": "fitted",
                "meaning": "time of x",
            }
        }
    }
    (entry,) = term_entries({"some-engine": document})
    assert entry.text == "Time of x."
    assert entry.values == {"some-engine": "2e-05, between 1e-05 and 5e-05 (fitted)"}


def test_the_command_prints_a_term_or_all(capsys):
    assert run(["explain", "usp"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ulysses  (axis)")
    assert "source" in out
    assert run(["explain"]) == 0
    assert "axis: " in capsys.readouterr().out
    assert run(["explain", "vae", "decode", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["terms"][0]["term"] == "vae_decode"


def test_the_command_refuses_in_one_line(capsys):
    assert run(["explain", "ulyses"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert err[0].startswith('error[term]: nothing is called "ulyses"; nearest: ')


def test_schema_prints_json(capsys):
    assert run(["schema", "recommend"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Answer"
    assert run(["schema"]) == 0
    assert "predict" in capsys.readouterr().out.split()
    assert run(["schema", "nothing"]) == 2


def warnings_of_the_program() -> set[str]:
    """First arguments of every `Problem(..., severity="warning")` in the source."""
    found: set[str] = set()
    for path in (Path(__file__).parents[1] / "perfmodel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Problem":
                continue
            warns = any(
                word.arg == "severity" and getattr(word.value, "value", "") == "warning"
                for word in node.keywords
            )
            if warns and node.args and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


def test_every_warning_can_be_explained():
    names = warnings_of_the_program()
    assert {"launch-ignored", "idle-gpus", "cache-ratio"} <= names
    entries = all_entries()
    for name in names:
        assert explain(name, entries)[0].text, name


def test_words_of_the_pages_are_explained():
    entries = all_entries()
    source = Path(perfmodel.__file__).parent
    told = "".join(path.read_text() for path in (source / "stages").glob("*.py"))
    roundings = re.findall(r'rounding\(\s*"([a-z-]+)"', told)
    assert "patch-padding" in roundings
    words = [*AXIS_NAMES.values(), *PART_TITLES.values(), *COLLECTIVES.values(), *roundings]
    words += [
        "no-network",
        "small kernels",
        "layout copies",
        "matrix products",
        "given back if short",
        "needed",
    ]
    for word in words:
        assert explain(word, entries)[0].text, word


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cfg2_usp2", "2 guidance branches run at once"),
        ("usp4_vaepp4", "4 GPUs decode VAE tiles"),
        ("cfg2_tp2_fp8", "Option fp8"),
    ],
)
def test_configuration_ids_are_explained(name, says, capsys):
    assert run(["explain", name]) == 0
    assert says in " ".join(capsys.readouterr().out.split())
    assert run(["explain", name + "_nothing9"]) == 2


def given_ids(call: ast.Call, function: str, place: int) -> list[ast.expr]:
    """The id that `call` hands over, where it calls `function` (by the end of its name)."""
    if not ast.unparse(call.func).endswith(function):
        return []
    named = [word.value for word in call.keywords if word.arg in ("rule_id", "rule")]
    return named[:1] or call.args[place : place + 1]


def helpers(tree: ast.Module) -> dict[str, int]:
    """Functions of a module that pass one of their own parameters on as the id of a problem."""
    found = {}
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [argument.arg for argument in function.args.args]
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for given in (given for call in calls for given in given_ids(call, "Problem", 0)):
            if isinstance(given, ast.Name) and given.id in names:
                found[function.name] = names.index(given.id)
    return found


def rule_ids() -> set[str]:
    """Ids that the code gives its problems, as far as they are written out."""
    found = set()
    for path in (Path(perfmodel.__file__).parent).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for function, place in ({"Problem": 0} | helpers(tree)).items():
            for given in (given for call in calls for given in given_ids(call, function, place)):
                if isinstance(given, ast.Constant):
                    found.add(given.value)
                elif isinstance(given, ast.Name) and given.id in names:
                    found.add(names[given.id])
    return found


def test_every_error_and_warning_is_explained(entries):
    ids = rule_ids()
    assert len(ids) > 120
    known = {folded(name) for entry in entries for name in (entry.term, *entry.aliases)}
    assert not sorted(name for name in ids if folded(name) not in known)


def test_no_refusal_is_explained_that_the_code_never_gives():
    written = {entry.term for entry in glossary() if entry.kind == "error"}
    assert len(written) > 50
    assert written - rule_ids() <= {"bench-compiled", "bench-preset"}
