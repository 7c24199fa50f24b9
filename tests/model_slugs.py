"""Models of the catalogue by the kind of their transformer, for tests that take all of a kind."""

from perfmodel.catalog import load_model, model_ids

OTHER_FAMILIES = {
    "cogvideox",
    "cosmos_predict",
    "cosmos_transfer",
    "helios",
    "hunyuan_dit",
    "latte",
    "longcat_video",
    "ltx",
    "ltx2",
    "minimax_h3",
    "mochi",
    "pixart",
    "sana",
    "wan_vace",
}
"""Attention to text apart, and streams of their own."""

JOINT_FAMILIES = {
    "flux",
    "flux2",
    "ovis_image",
    "qwen_image",
    "sd3",
    "z_image",
    "z_image_control",
    "hunyuan_video",
    "hunyuan_video15",
}
"""Text and latent tokens in one attention."""

OTHER = [slug for slug in model_ids() if load_model(slug).family in OTHER_FAMILIES]
JOINT = [slug for slug in model_ids() if load_model(slug).family in JOINT_FAMILIES]
