"""Which packages of a kernel its interpreter lacks, or has too old: the plan of an overlay.

Owns the rule. Pure: it is given what is needed and what is there. What the plan says is laid out by `overlay_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags, platform_tags
from packaging.utils import canonicalize_name

from loommux_host.interpreters.probe import Interpreter

#: What `loommux_kernel` imports. What these need comes with them.
ROOTS = ("ipykernel", "ipython", "jupyter-client", "pyzmq", "psutil", "regex")
#: A kernel runs without it (`app.without_debugpy`), and it is 19 MB.
LEFT_OUT = frozenset({"debugpy"})


@dataclass(frozen=True)
class Package:
    """An installed package of the server's own environment: what an overlay can be made of."""

    name: str
    version: str
    requires: tuple[str, ...]
    tags: frozenset[Tag]


@dataclass(frozen=True)
class Piece:
    """One package of an overlay.

    `place`: ``front`` shadows an older one of the interpreter, ``behind`` is only found where it has none.
    `source`: the server's own files, or a wheel that has to be fetched, since ours are built for another Python.
    `instead` is the version that is shadowed.
    """

    name: str
    version: str
    place: Literal["front", "behind"]
    source: Literal["own", "wheel"]
    instead: str | None = None


def plan(interpreter: Interpreter, own: Callable[[str], Package], roots: Mapping[str, SpecifierSet]) -> list[Piece]:
    """What a kernel there needs beside its own packages; empty when it has everything.

    `own` gives a package of ours by name; `roots` what `loommux_kernel` needs, with the versions it works with.
    """
    there = {canonicalize_name(name): version for name, version in interpreter.distributions.items()}
    needed = _needed(interpreter, own, roots)
    fitting = supported(interpreter)
    pieces: list[Piece] = []
    for name, wanted in needed.items():
        has = there.get(canonicalize_name(name))
        if has is not None and all(specifier.contains(has, prereleases=True) for specifier in wanted):
            continue
        package = own(name)
        source: Literal["own", "wheel"] = "own" if package.tags & fitting else "wheel"
        pieces.append(Piece(name, package.version, "behind" if has is None else "front", source, has))
    return sorted(pieces, key=lambda piece: piece.name)


def supported(interpreter: Interpreter) -> frozenset[Tag]:
    """The tags of wheels that work there; it runs on this machine, so platforms are ours."""
    version = interpreter.version[:2]
    abis = [f"cp{version[0]}{version[1]}t"] if interpreter.threaded else None
    platforms = list(platform_tags())
    return frozenset(cpython_tags(version, abis, platforms)) | frozenset(
        compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)
    )


def _needed(
    interpreter: Interpreter, own: Callable[[str], Package], roots: Mapping[str, SpecifierSet]
) -> dict[str, list[SpecifierSet]]:
    """Every package that a kernel there imports or that those need, with the versions that each one asks for."""
    number = ".".join(map(str, interpreter.version))
    there = {"extra": "", "python_full_version": number, "python_version": number.rpartition(".")[0]}
    needed: dict[str, list[SpecifierSet]] = {}

    def walk(wanted: Iterable[tuple[str, SpecifierSet]]) -> None:
        for name, specifier in wanted:
            first = name not in needed
            needed.setdefault(name, []).append(specifier)
            if first:
                walk(_asked(own(name).requires, there))

    walk((canonicalize_name(name), specifier) for name, specifier in roots.items())
    return needed


def _asked(requires: Iterable[str], environment: dict[str, str]) -> Iterable[tuple[str, SpecifierSet]]:
    for line in requires:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate(dict(environment))
        if applies and name not in LEFT_OUT:
            yield name, requirement.specifier
