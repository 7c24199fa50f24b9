"""Data classes that are cheap to define: only ``__init__`` is generated and compiled.

The standard decorator also writes and compiles ``__repr__``, ``__eq__`` and ``__hash__`` for every
class, which a command that defines eighty of them and compares almost none pays for at each start.
Here all classes share one of each; what they do is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    from reprlib import recursive_repr

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As `dataclasses.dataclass`, for frozen classes without ordering."""

        def build(plain: type) -> type:
            made = dataclasses.dataclass(plain, repr=False, eq=False, frozen=True, **options)
            for name, method in METHODS.items():
                if name not in made.__dict__:
                    setattr(made, name, method)
            return made

        options.pop("frozen", None)
        return build if cls is None else build(cls)

    @recursive_repr()
    def _repr(self: Any) -> str:
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _values(record: Any) -> tuple[Any, ...]:
        return tuple(getattr(record, f.name) for f in dataclasses.fields(record) if f.compare)

    def _eq(self: Any, other: object) -> Any:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self: Any) -> int:
        return hash(_values(self))

    METHODS = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash}

__all__ = ["dataclass"]
