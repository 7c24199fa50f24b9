"""What differs between two configurations, in words, and the question that the pair answers."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.spec.parallel import ParallelConfig

SPLITS = {
    "cfg": "CFG",
    "ulysses": "Ulysses",
    "ring": "ring",
    "allgather": "all-gather",
    "tp": "TP",
    "pp": "PP",
    "dp": "DP",
}
LABELS = {"ulysses": "usp", "allgather": "agkv", "vae_patch": "vaepp"}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two configurations do differently.

    Attributes:
        text: e.g. ``cfg 2 to usp 2``, ``vaepp 4 to 1``.
        question: what measuring both tells.
        things: how many things these are, where they cannot be told apart.
    """

    text: str
    question: str
    things: int = 1


def label(axis: str) -> str:
    """The name of an axis in an id."""
    return LABELS.get(axis, axis)


def changes(old: ParallelConfig, new: ParallelConfig) -> tuple[Change, ...]:
    """What leads from `old` to `new`; moving a factor from one axis to another is one thing."""
    found = [*_splits(old, new), *_weights(old, new), *_vae(old, new)]
    return tuple(found)


def _splits(old: ParallelConfig, new: ParallelConfig) -> list[Change]:
    """Axes that multiply the number of devices."""
    ratio = {a: getattr(new, a) / getattr(old, a) for a in SPLITS}
    fewer = [axis for axis, r in ratio.items() if r < 1]
    more = [axis for axis, r in ratio.items() if r > 1]
    found: list[Change] = []
    while fewer and more and (match := _exchange(ratio, fewer, more)):
        source, target = match
        factor = round(ratio[target])
        fewer.remove(source)
        more.remove(target)
        found.append(
            Change(
                f"{label(source)} {factor} to {label(target)} {factor}",
                f"{_first(SPLITS[source])} or {SPLITS[target]} for {factor} GPUs?",
            )
        )
    if fewer and more:
        return [*found, _several(old, new, fewer, more)]
    return [*found, *(_one_axis(old, new, axis) for axis in (*fewer, *more))]


def _several(old: ParallelConfig, new: ParallelConfig, fewer: list[str], more: list[str]) -> Change:
    """Factors of several axes that go to several others: ``cfg 2, ring 2 to usp 4``."""
    given = ", ".join(f"{label(a)} {getattr(old, a) // getattr(new, a)}" for a in fewer)
    taken = ", ".join(f"{label(a)} {getattr(new, a) // getattr(old, a)}" for a in more)
    if any(getattr(old, a) % getattr(new, a) for a in fewer):
        given = ", ".join(f"{label(a)} {getattr(old, a)}" for a in fewer)
        taken = ", ".join(f"{label(a)} {getattr(new, a)}" for a in more)
    before, after = (" with ".join(SPLITS[a] for a in axes) for axes in (fewer, more))
    question = f"{_first(before)} or {after}?"
    return Change(f"{given} to {taken}", question, things=len(fewer) + len(more) - 1)


def _exchange(ratio: dict[str, float], fewer: list[str], more: list[str]) -> tuple[str, str] | None:
    pairs = ((a, b) for a in fewer for b in more if abs(ratio[a] * ratio[b] - 1) < 1e-9)
    return next(pairs, None)


def _one_axis(old: ParallelConfig, new: ParallelConfig, axis: str) -> Change:
    before, after = getattr(old, axis), getattr(new, axis)
    text = f"{label(axis)} {before} to {after}"
    if new.world_size == old.world_size:
        return Change(text, f"what does {SPLITS[axis]} bring?")
    small, large = sorted((old.world_size, new.world_size))
    gpus = "GPU" if small == 1 else "GPUs"
    return Change(text, f"do {large} GPUs pay against {small} {gpus}?")


def _weights(old: ParallelConfig, new: ParallelConfig) -> list[Change]:
    before, after = ((c.hsdp, c.hsdp_replicate if c.hsdp > 1 else 1) for c in (old, new))
    if before == after:
        return []
    text = f"hsdp {_mesh(before)} to {_mesh(after)}"
    if 1 in (before[0], after[0]):
        return [Change(text, "what does weight sharding cost?")]
    return [Change(text, "how many GPUs should share the weights?")]


def _mesh(mesh: tuple[int, int]) -> str:
    return f"{mesh[0]}x{mesh[1]}" if mesh[1] > 1 else str(mesh[0])


def _vae(old: ParallelConfig, new: ParallelConfig) -> list[Change]:
    if old.vae_patch != new.vae_patch:
        text = f"vaepp {old.vae_patch} to {new.vae_patch}"
        small, large = sorted((old.vae_patch, new.vae_patch))
        if small == 1:
            return [Change(text, "does VAE patch parallel pay?")]
        return [Change(text, f"VAE tiles on {small} or {large} GPUs?")]
    if old.vae_tiling != new.vae_tiling:
        word = "on" if new.vae_tiling else "off"
        return [Change(f"tiling {word}", "what does VAE tiling cost?")]
    return []


def things(found: tuple[Change, ...]) -> int:
    """How many things differ."""
    return sum(change.things for change in found)


def words(found: tuple[Change, ...]) -> tuple[str, str]:
    """(what changes, the question) of several changes as one line each."""
    text = ", ".join(change.text for change in found)
    if len(found) == 1:
        return text, found[0].question
    split = next((c for c in found if c.text.split()[0] not in ("vaepp", "tiling")), found[0])
    return text, split.question


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]
