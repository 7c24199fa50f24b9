"""Model families: shapes, unsharded operators and weights; one file a family."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.spec.model import ModelSpec
    from perfmodel.stages.base import Family

FAMILIES = {
    "cosmos3": "perfmodel.stages.cosmos3",
    "wan": "perfmodel.stages.wan",
    "wan_vace": "perfmodel.stages.wan_vace",
    "flux": "perfmodel.stages.flux",
    "flux2": "perfmodel.stages.flux2",
    "ovis_image": "perfmodel.stages.ovis_image",
    "qwen_image": "perfmodel.stages.qwen_image",
    "sd3": "perfmodel.stages.sd3",
    "z_image": "perfmodel.stages.z_image",
    "z_image_control": "perfmodel.stages.z_image_control",
    "hunyuan_video": "perfmodel.stages.hunyuan_video",
    "hunyuan_video15": "perfmodel.stages.hunyuan_video15",
    "cogvideox": "perfmodel.stages.cogvideox",
    "cosmos_predict": "perfmodel.stages.cosmos_predict",
    "cosmos_transfer": "perfmodel.stages.cosmos_transfer",
    "hunyuan_dit": "perfmodel.stages.hunyuan_dit",
    "latte": "perfmodel.stages.latte",
    "ltx": "perfmodel.stages.ltx",
    "minimax_h3": "perfmodel.stages.minimax_h3",
    "mochi": "perfmodel.stages.mochi",
    "pixart": "perfmodel.stages.pixart",
    "ltx2": "perfmodel.stages.ltx2",
    "sana": "perfmodel.stages.sana",
    "helios": "perfmodel.stages.helios",
    "longcat_video": "perfmodel.stages.longcat_video",
    "traced": "perfmodel.stages.traced",
}


def family(model: ModelSpec) -> Family:
    """The family of `model`, imported when first asked for.

    Raises:
        BadInput: a model file names a family that does not exist.
    """
    module = FAMILIES.get(model.family)
    if module is None:
        raise BadInput(_unknown_family(model))
    _check_encoders(model)
    return cast("Family", import_module(module))


def _unknown_family(model: ModelSpec) -> Problem:
    near = get_close_matches(model.family, FAMILIES, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return Problem(
        "family",
        f'models/{model.slug}.yaml: family "{model.family}" is unknown{hint}; families: '
        f"{', '.join(FAMILIES)}; a new size of one of them is such a file, a new family needs code "
        "(README, Your own model)",
        field="family",
        value=model.family,
        legal_values=tuple(FAMILIES),
        suggestions=tuple(near),
    )


WITHOUT_ENCODERS = frozenset({"cosmos3", "traced"})
"""Families that read the prompt in the transformer itself, or bring encoders of their own."""


def _check_encoders(model: ModelSpec) -> None:
    from perfmodel.stages.encoders import ENCODERS

    label = f"{model.slug}: text_encoders"
    bad = [name for name in model.text_encoders if name not in ENCODERS]
    known = ", ".join(ENCODERS)
    lines = [f'{label}: "{name}" is unknown; encoders: {known}' for name in bad]
    if not model.text_encoders and model.family not in WITHOUT_ENCODERS:
        lines = [f"{label}: the list is empty; this family needs one of: {known}"]
    if lines:
        legal = tuple(ENCODERS)
        raise BadInput(*(Problem("models-file", line, label, None, legal) for line in lines))
