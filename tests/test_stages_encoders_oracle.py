"""Text encoders that no trace covers, against the classes of transformers on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from meta_modules import ids

from perfmodel.ops import Attention
from perfmodel.stages import text_encoder
from perfmodel.stages.summary import flops_by_kind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

GATED = dict(feed_forward_proj="gated-gelu")
T5_11B = dict(vocab_size=32_128, d_model=1024, d_kv=128, d_ff=65_536, num_layers=24, num_heads=128)
MT5_XL = dict(vocab_size=250_112, d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_heads=32)
BERT = dict(
    vocab_size=47_020,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
GEMMA2 = dict(
    vocab_size=256_000,
    hidden_size=2304,
    intermediate_size=9216,
    num_hidden_layers=26,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
)


def qwen3(layers: int, hidden: int, ffn: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return dict(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
    )


CASES: dict[str, Callable[[], Any]] = {
    "t5-11b": lambda: transformers.T5EncoderModel(transformers.T5Config(**T5_11B)),
    "mt5-xl": lambda: transformers.MT5EncoderModel(transformers.MT5Config(**MT5_XL, **GATED)),
    "bert-large-zh": lambda: transformers.BertModel(transformers.BertConfig(**BERT)),
    "gemma2-2b": lambda: transformers.Gemma2Model(transformers.Gemma2Config(**GEMMA2)),
    "qwen3-1.7b": lambda: transformers.Qwen3Model(
        transformers.Qwen3Config(**qwen3(28, 2048, 6144, 16, tied=True))
    ),
    "qwen3-4b-lm": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**qwen3(36, 2560, 9728, 32, tied=True))
    ),
    "qwen3-8b-lm": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**qwen3(36, 4096, 12_288, 32, tied=False))
    ),
}


@cache
def module(name: str) -> Any:
    with torch.device("meta"):
        return CASES[name]().to(torch.bfloat16).eval()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokens", [77, 256])
def test_an_encoder_does_the_work_of_the_class(name: str, tokens: int) -> None:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(name)(input_ids=ids(1, tokens))
    ops = text_encoder.encode(name, 1, tokens)
    mine = flops_by_kind(ops)
    # Both halves of a causal attention are computed where torch writes it out.
    causal = flops_by_kind([op for op in ops if isinstance(op, Attention) and op.causal])
    total = mine["gemm"] + mine["attention"] + causal["attention"]
    # The rotary table is a product too small to be an operator here; BERT pools one token.
    assert total == pytest.approx(counter.get_total_flops(), rel=2e-4)


@pytest.mark.parametrize("name", CASES)
def test_parameters_equal_those_of_the_class(name: str) -> None:
    published = sum(p.numel() for p in module(name).parameters())
    assert text_encoder.component(name).params == published
