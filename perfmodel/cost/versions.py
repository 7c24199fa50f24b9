"""Versions of the laws: a fit of another version is refused with the command to refit."""

LAW_VERSIONS: dict[str, int] = {
    "gemm": 3,
    "attention": 2,
    "conv": 3,
    "pointwise": 1,
    "collective": 4,
    "quantize": 1,
    "host": 1,
    "transfer": 1,
    "media": 1,
}
