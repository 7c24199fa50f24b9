"""The project's data classes behave as those of the standard library."""

import dataclasses
import pickle

import pytest

from perfmodel.frozen import dataclass


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """The oracle."""

    width: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The same fields."""

    width: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Longer(Ours):
    """A subclass with one more field."""

    depth: int = 1


def test_repr_and_hash_are_those_of_the_standard_library():
    made, oracle = Ours(width=3, names=("a",)), Standard(width=3, names=("a",))
    assert repr(made) == repr(oracle).replace("Standard", "Ours")
    assert hash(made) == hash(oracle)


def test_equal_fields_of_the_same_class_are_equal():
    assert Ours(width=3) == Ours(width=3)
    assert Ours(width=3) != Ours(width=4)
    assert Ours(width=3) != Longer(width=3)
    assert Longer(width=3) != Longer(width=3, depth=2)
    assert Ours(width=3) != Standard(width=3)
    assert len({Ours(width=3), Ours(width=3), Ours(width=4)}) == 2


def test_frozen_replaceable_and_picklable():
    made = Longer(width=3, depth=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.width = 4
    assert dataclasses.replace(made, width=4) == Longer(width=4, depth=2)
    assert pickle.loads(pickle.dumps(made)) == made
