"""All legality rules of vLLM-Omni, in the order in which they are reported."""

from __future__ import annotations

from perfmodel.engines.vllm_omni.rules_mesh import MESH_RULES
from perfmodel.engines.vllm_omni.rules_options import OPTION_RULES, VAE_RULES
from perfmodel.engines.vllm_omni.rules_sequence import SEQUENCE_RULES

RULES = (*OPTION_RULES, *MESH_RULES, *SEQUENCE_RULES, *VAE_RULES)
