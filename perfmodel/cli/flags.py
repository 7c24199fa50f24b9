"""The table of flags: one line a flag, the same name means the same thing in every command."""

from __future__ import annotations

from dataclasses import dataclass
from keyword import iskeyword
from typing import Literal

Kind = Literal["text", "switch", "list", "files"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: without the dashes, e.g. ``gpu-memory`` (also the key in ``--config`` files).
        help: one line; says the unit and the default.
        kind: text (takes a value), switch, list (text that may be repeated), or files (names
            without a flag).
        metavar: what the value looks like.
        default: what holds when the flag is not given; "" where the model or machine decides.
        example: a value to propose in a refusal.
        complete: name of a completion in `complete`; "" for none.
    """

    name: str
    help: str
    kind: Kind = "text"
    metavar: str = ""
    default: str = ""
    example: str = ""
    complete: str = ""

    @property
    def key(self) -> str:
        """Python name: ``gpu_memory``; ``from_`` where the name is a keyword."""
        return key_of(self.name)


def key_of(name: str) -> str:
    """The Python name of a flag."""
    key = name.replace("-", "_")
    return f"{key}_" if iskeyword(key) else key


MACHINE = (
    Flag(
        "gpus",
        "devices: 4xB300, 2x8xH100 (nodes x GPUs), h100:8, or here",
        metavar="NxNAME",
        example="4xB300",
        complete="gpus",
    ),
    Flag(
        "system", "a described machine (YAML; perfmodel hardware detect writes one)", metavar="FILE"
    ),
    Flag(
        "gpu-memory",
        "memory of each device in GiB, for modified cards",
        metavar="GiB",
        example="24",
    ),
    Flag("gpu-reserve", "GiB of each device that others hold", metavar="GiB", example="2"),
    Flag(
        "host-ram", "host RAM of a node in GiB; unknown unless given", metavar="GiB", example="512"
    ),
    Flag("no-p2p", "device pairs copy through host memory", "switch"),
    Flag(
        "sockets", "CPUs that the PCIe devices of a node are spread over", metavar="N", example="2"
    ),
)
REQUEST = (
    Flag(
        "model",
        "name, Hugging Face id, YAML file or diffusers folder",
        metavar="NAME",
        default="cosmos3-nano",
        complete="models",
    ),
    Flag("task", "t2v, i2v, t2i, v2v, ...; default: the model's own", metavar="TASK"),
    Flag("size", "width x height in pixels", metavar="WxH", example="1280x720"),
    Flag("frames", "frames of the output; 1 is an image", metavar="N", example="189"),
    Flag("seconds", "length of the output, instead of --frames", metavar="S", example="5"),
    Flag("fps", "frames per second of the output", metavar="N", example="24"),
    Flag("steps", "denoise steps", metavar="N", example="35"),
    Flag("guidance", "guidance scale; 1 runs one branch", metavar="X", example="6"),
    Flag(
        "forwards",
        "transformer forwards over all branches, where they are not steps x branches",
        metavar="N",
        example="70",
    ),
    Flag("input-images", "images that condition the request", metavar="N", example="1"),
    Flag("sound", "generate sound as well", "switch"),
    Flag("text-tokens", "prompt length in tokens (512)", metavar="N", example="512"),
    Flag("batch", "outputs of one request", metavar="N", default="1", example="1"),
    Flag(
        "concurrency",
        "requests in flight: sent at once, each server takes one after another",
        metavar="N",
        default="1",
        example="4",
    ),
)
ENGINE = (
    Flag(
        "engine",
        "NAME, NAME@VERSION or NAME@DATE; recommend: any compares all that have the model",
        metavar="NAME[@V]",
        default="vllm-omni",
        complete="engines",
    ),
    Flag(
        "option",
        "KEY=VALUE, fixed for all candidates; may be repeated",
        "list",
        metavar="KEY=VALUE",
        example="dtype=bf16",
        complete="options",
    ),
    Flag("dtype", "same as --option dtype=...", metavar="DTYPE", example="bf16"),
    Flag("attention", "same as --option attention_backend=...", metavar="BACKEND"),
    Flag("eager", "no compilation: --option compile=off", "switch"),
    Flag(
        "cache",
        "none, skip=0.3 for a step cache that skips 30 %, or a method: tea_cache, cache_dit, ...",
        metavar="none|skip=X",
        example="skip=0.3",
    ),
    Flag(
        "guardrails",
        "safety checks stay on; the check of the prompt is not predicted, that of the frames is",
        "switch",
    ),
    Flag(
        "offload",
        "none, auto, text-encoder, model, layerwise or layerwise-gather",
        metavar="WHAT",
    ),
    Flag("vae-tiling", "auto, on or off", metavar="WHEN"),
    Flag("vae-mode", "tile, spatial_shard_height or spatial_shard_width", metavar="MODE"),
    Flag("fit", "a calibration of your own", metavar="FILE"),
    Flag("strict", "refuse a device without fitted kernel laws (exit code 4)", "switch"),
)
SEARCH = (
    Flag(
        "objective",
        "latency, throughput, memory or cost (GPU-seconds)",
        metavar="WHAT",
        default="latency",
    ),
    Flag(
        "max-latency",
        "the answer, then exit code 5 when the fastest request (the last in flight) is slower",
        metavar="MS",
        example="60000",
    ),
    Flag("price", "per GPU-hour; adds a price per request", metavar="X", example="4"),
    Flag("any-gpus", "fewer GPUs are considered too (the default)", "switch"),
    Flag("use-all-gpus", "only configurations of all GPUs", "switch"),
    Flag("allow-lossy", "rank what changes the output with the rest, marked", "switch"),
    Flag("top", "how many configurations to show", metavar="N", default="5", example="10"),
)
PARALLEL = (
    Flag(
        "parallel",
        "cfg=2,ulysses=2 or an id; or a launch command after --",
        metavar="KEYS",
        default="single",
        example="cfg=2,ulysses=2",
        complete="parallel",
    ),
)
BESIDE = (
    Flag(
        "measured",
        "response headers, a log, or denoise=25900,... in ms",
        metavar="X",
        example="denoise=25900",
    ),
    Flag(
        "set",
        "STAGE=MS, replaces one stage; may be repeated",
        "list",
        metavar="STAGE=MS",
        example="mp4=3850",
    ),
    Flag("operators", "how many operators to show", metavar="N", default="10", example="20"),
)
VARY = (
    Flag(
        "vary",
        "KEY=V1,V2 for any flag; may be repeated",
        "list",
        metavar="KEY=V1,V2",
        example="gpus=4xB300,8xH200",
    ),
)
PLAN = (
    Flag("max-runs", "at most so many runs", metavar="N", default="6", example="3"),
    Flag(
        "budget",
        "wall time of all runs, one after the other: 30m, 1h30m",
        metavar="TIME",
        example="30m",
    ),
    Flag(
        "candidates",
        "only these configurations: ids, parted by commas; may be repeated",
        "list",
        metavar="ID,ID",
        example="cfg2_usp2,usp4",
    ),
)
VERIFY = (
    Flag(
        "from",
        "run records (JSONL) that run_all.sh or records convert wrote; may be repeated",
        "list",
        metavar="FILE",
        example="sweep/results.jsonl",
    ),
    Flag("plan", "the plan behind them (plan.json); default: the one beside them", metavar="FILE"),
    Flag("include-doubtful", "also learn from records that are marked doubtful", "switch"),
    Flag("study", "where what was learnt is kept; none keeps nothing", metavar="FILE"),
)
HERE = (
    Flag("live", "build the pick's blocks in torch on the devices here and time them", "switch"),
    Flag(
        "serve",
        "run a plan here: start its engine, benchmark, stop it",
        metavar="DIR",
        example="sweep/",
    ),
    Flag("runs", "with --serve: letters of the plan; default: all without a result", metavar="A,B"),
    Flag(
        "ready",
        "with --serve: minutes that a server may take to get ready",
        metavar="MIN",
        default="30",
        example="30",
    ),
    Flag("device", "with --live: cuda, npu or cpu; default: the first there is", metavar="KIND"),
    Flag(
        "ranks",
        "with --live: processes; default: as --parallel says, else all devices",
        metavar="N",
        example="2",
    ),
    Flag(
        "scale",
        "with --live: divides sides, heads and widths; default: 1, on a CPU 8",
        metavar="N",
        example="8",
    ),
    Flag("threads", "with --live: CPU threads of a process", metavar="N", default="1", example="1"),
    Flag(
        "records",
        "with --live: folder of the measured rows, which a second start goes on with",
        metavar="DIR",
        default="live",
    ),
)
FILES = (
    Flag(
        "files",
        "response headers, server logs, benchmark JSON of one run",
        "files",
        metavar="FILE...",
        example="headers.txt",
    ),
)
REJECTED = (Flag("rejected", "list every rule that rejected combinations", "switch"),)
COMMANDS = (
    Flag(
        "commands",
        "serve, request and benchmark of the first N, or a folder to write them to",
        metavar="N|DIR",
        example="3",
    ),
)
OUTPUT = (
    Flag("format", "table, json, csv or md", metavar="FORMAT", default="table"),
    Flag("json", "same as --format json", "switch"),
    Flag("out", "write to a file; .json, .csv and .md choose the format", metavar="FILE"),
    Flag("color", "auto, always or never", metavar="WHEN", default="auto"),
    Flag("config", "YAML with the flags' names; flags win", metavar="FILE"),
    Flag("dump-config", "print such a YAML and stop", "switch"),
)
WORK = (*MACHINE, *REQUEST, *ENGINE)
"""What describes the question; shared by every command that predicts."""

ALL = (
    *WORK,
    *SEARCH,
    *PARALLEL,
    *BESIDE,
    *VARY,
    *PLAN,
    *VERIFY,
    *HERE,
    *FILES,
    *REJECTED,
    *COMMANDS,
    *OUTPUT,
)
BY_KEY = {flag.key: flag for flag in ALL}
