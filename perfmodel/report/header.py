"""Opening and closing lines that every page shares: what was asked, and how far to trust it."""

from __future__ import annotations

from perfmodel.report import words
from perfmodel.report.answer import Document, EngineInfo, Prediction, SystemInfo, WorkloadInfo
from perfmodel.report.page import Page, unbroken

ASSUMED_NOTE = "* assumed, a flag changes it"
SMALLEST_SHARE = 0.005
CITED = ("perfmodel", "fit", "rules", "terms")
SOURCES = {
    "measured": "measurements of exactly this",
    "fitted": "laws fitted to measurements",
    "prior": "priors (~)",
    "datasheet": "datasheet rates",
}


def add_header(page: Page, answer: Document) -> None:
    """Request, latent shape, machine, engine; ``*`` marks what the user did not give."""
    if answer.workload:
        page.items(_request(answer.workload), separator="  ")
        page.items(_latent(answer.workload), indent=2, separator=" ")
    machine = _machine(answer.system) if answer.system else []
    rules = _engine(answer.engine) if answer.engine else []
    if machine or rules:
        joint = "; ".join([*machine[-1:], *rules[:1]])
        page.items([*machine[:-1], joint, *rules[1:]])
    if answer.provenance.get("traced"):
        page.paragraph(f"operators traced, no family: {answer.provenance['traced']}", indent=2)
    if any(part and part.assumed for part in (answer.workload, answer.system, answer.engine)):
        page.paragraph(ASSUMED_NOTE, indent=2)


def _star(text: str, assumed: tuple[str, ...], *names: str) -> str:
    return text + "*" if any(name in assumed for name in names) else text


def _request(work: WorkloadInfo) -> list[str]:
    assumed = work.assumed
    seconds = f" ({work.seconds:.1f} s)" if work.seconds and work.frames > 1 else ""
    frames = _star(f"{work.frames:,} frames", assumed, "frames", "seconds")
    fps = _star(f" at {words.plain(work.fps)} fps", assumed, "fps") if work.fps else ""
    image = _star("one image", assumed, "frames", "seconds")
    extra = [
        f"batch {work.batch}" if work.batch > 1 else "",
        f"{work.concurrency} requests in flight" if work.concurrency > 1 else "",
        f"{work.input_images} input images" if (work.input_images or 0) > 1 else "",
        "with sound" if work.sound else "",
    ]
    return [
        _star(work.title or work.model, assumed, "model"),
        _star(words.TASK_TITLES.get(work.task, work.task), assumed, "task"),
        _star(f"{work.width}x{work.height}", assumed, "size", "width", "height"),
        f"{frames}{fps}{seconds}" if work.frames > 1 else image,
        _star(f"{work.steps} steps", assumed, "steps"),
        _star(f"guidance {words.plain(work.guidance)}", assumed, "guidance")
        if work.guidance is not None
        else "",
        *extra,
    ]


def is_image(answer: Document) -> bool:
    """Whether the request makes images, not videos."""
    return answer.workload is not None and answer.workload.frames == 1


def _latent(work: WorkloadInfo) -> list[str]:
    if work.latent_frames is None or work.video_tokens is None:
        return []
    text = _star(f"{words.number(work.text_tokens)}", work.assumed, "text_tokens")
    made = "image" if work.frames == 1 else "video"
    extra = f" + {work.extra_tokens:,} further" if work.extra_tokens else ""
    return [
        f"latent {work.latent_frames}x{work.latent_height}x{work.latent_width},",
        f"{work.video_tokens:,} {made}{extra} + {text} text tokens;",
        _forwards(work),
    ]


def _forwards(work: WorkloadInfo) -> str:
    steps = work.run_steps or work.steps
    if work.forwards is None:
        return f"{steps} steps"
    if work.guidance_branches and work.forwards == steps * work.guidance_branches:
        plural = "es" if work.guidance_branches > 1 else ""
        branches = f"{work.guidance_branches} guidance branch{plural}"
        return f"{steps} steps x {branches} = {work.forwards} forwards"
    return f"{steps} steps, {work.forwards} forwards"


def _machine(system: SystemInfo) -> list[str]:
    assumed = system.assumed
    nodes = f"{system.nodes} nodes" if system.nodes > 1 else ""
    ram = f"{words.number(system.host_ram_gib)} GiB host RAM" if system.host_ram_gib else ""
    usable = f"{words.gib(system.usable_gib)} GiB usable each" if system.usable_gib else ""
    p2p = "no peer access" if system.p2p is False and system.num_gpus > 1 else ""
    label = system.label or f"{system.num_gpus}x {system.title or system.device}"
    return [
        part
        for part in (
            _star(label, assumed, "device", "gpus"),
            _star(system.link, assumed, "link") if system.link and system.num_gpus > 1 else "",
            nodes,
            _star(p2p, assumed, "p2p") if p2p else "",
            usable,
            ram,
        )
        if part
    ]


def _engine(engine: EngineInfo) -> list[str]:
    version = _star(f" {engine.version}", engine.assumed, "version") if engine.version else ""
    shown = [_option(key, value) for key, value in engine.options.items()]
    options = [
        _star(text, engine.assumed, key)
        for key, text in zip(engine.options, shown, strict=True)
        if text
    ]
    return [f"{engine.title or engine.name}{version} rules", *options]


def _option(key: str, value: object) -> str:
    """An option in words; empty where the value is the quiet default."""
    if value is None or (key, value) in QUIET:
        return ""
    match key:
        case "dtype":
            return str(value)
        case "attention_backend":
            return f"attention {words.BACKEND_TITLES.get(str(value), str(value))}"
        case "compile":
            return "compiled" if value else "eager"
        case "guardrails":
            return "guardrails on" if value else "guardrails off"
    return f"{key.replace('vae', 'VAE').replace('_', ' ')} {value}"


QUIET = {
    ("vae_tiling", "auto"),
    ("vae_mode", "tile"),
    ("vae_fast_path", "off"),
    ("offload", "none"),
    ("offload", "auto"),
    ("cache_method", "none"),
    ("cache_skip", 0.0),
    ("attention_density", 1.0),
    ("ulysses_mode", "strict"),
}


def add_trust(page: Page, answer: Document, best: Prediction | None) -> None:
    """TRUST: what the time rests on, held-out error, the nearest run, the next command."""
    label = "TRUST  "
    if answer.trust or best:
        page.paragraph(_trust(answer, best), label)
    for item in answer.evidence:
        source = f" <{item.url}>" if item.url else ""
        page.paragraph(item.text + source, indent=len(label))
    kernels = any(item.kind == "holdout" for item in answer.evidence)
    if answer.trust == "rough" and not kernels:
        device = answer.system.device if answer.system else "NAME"
        page.paragraph(
            f"Measure this device: perfmodel bench --out records/, then perfmodel calibrate "
            f"--records records/ --device {device}",
            indent=len(label),
        )


def _trust(answer: Document, best: Prediction | None) -> str:
    shares = best.provenance_share if best else {}
    parts = [
        f"{words.percent(share)} {'of this time rests ' if not index else ''}on {SOURCES[name]}"
        for index, (name, share) in enumerate(
            (name, shares[name]) for name in SOURCES if shares.get(name, 0.0) >= SMALLEST_SHARE
        )
    ]
    text = f"{answer.trust or 'unrated'}: {', '.join(parts)}" if parts else answer.trust or ""
    outside = best.extrapolated_share if best else 0.0
    if outside >= SMALLEST_SHARE:
        text += f"; {words.percent(outside)} is at shapes beyond those measured"
    return text + "." if text else ""


def add_cite(page: Page, answer: Document, seconds: float | None = None) -> None:
    """CITE: versions and the answer's id, to trace a number."""
    known = answer.provenance
    parts = [f"{key} {known[key]}" for key in CITED if key in known]
    if answer.answer_id:
        parts.append(f"answer {answer.answer_id}")
    took = f"     ({seconds:.1f} s)" if seconds is not None else ""
    if parts:
        page.paragraph(", ".join(map(unbroken, parts)) + unbroken(took), "CITE   ")
