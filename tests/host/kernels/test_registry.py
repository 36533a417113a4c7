"""The kernels of a server: names, paths, homes (contract 8.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loommux_host.kernels.registry import InvalidName, Registry, TooManyKernels
from tests.host.twins import Launching

pytestmark = pytest.mark.anyio


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    def launching(id: str, name: str) -> Launching:
        directory = tmp_path / id
        directory.mkdir()
        return Launching(directory)

    registry = Registry(launching, max_kernels=5)
    yield registry
    await registry.close()


async def test_two_openers_of_one_name_get_one_kernel(registry: Registry) -> None:
    first, second = registry.open("lab"), registry.open("lab")
    assert first.kernel is second.kernel
    assert (first.new, second.new) == (True, False)


async def test_opening_starts_the_process_behind_it(registry: Registry) -> None:
    kernel = registry.open("lab").kernel
    assert kernel.state == "starting"
    await kernel.ready()
    assert kernel.state == "running"


async def test_a_name_of_its_own_is_numbered_when_taken(registry: Registry) -> None:
    names = [registry.open_new("private-1a2b3c4d", private=True).name for _ in range(3)]
    assert names == ["private-1a2b3c4d", "private-1a2b3c4d-2", "private-1a2b3c4d-3"]


async def test_kernels_are_found_by_id_anywhere_by_path_from_the_root_and_by_name_from_home(registry: Registry) -> None:
    main, other = registry.open("main").kernel, registry.open("other").kernel
    child = registry.open("build", home=main.id).kernel
    assert registry.find(child.id) is child
    assert registry.find("/main/build") is child
    assert registry.find("/main") is main
    assert registry.find("build", main.id) is child
    assert registry.find("build", other.id) is None
    assert registry.find("other", main.id) is other
    assert registry.find("/other/build") is None
    assert registry.path(child) == "/main/build"
    assert registry.home_of(child) == main.id


async def test_a_child_may_have_the_name_of_a_main_kernel(registry: Registry) -> None:
    main = registry.open("lab").kernel
    child = registry.open("lab", home=main.id).kernel
    assert child is not main
    assert registry.find("lab", main.id) is child
    assert registry.find("lab") is main


async def test_renaming_numbers_a_taken_name_and_keeps_its_own(registry: Registry) -> None:
    one, two = registry.open("report").kernel, registry.open("draft").kernel
    assert registry.rename(two, "report") == "report-2"
    assert registry.rename(one, "report") == "report"
    assert registry.find("report-2") is two


@pytest.mark.case("X23")
@pytest.mark.parametrize("name", ["", "  ", "a/b", "a\nb", "x" * 257, "new", "k_abc", "k_", "k_rI1RIZHjbFoFLPq5SB8vmw"])
async def test_names_that_are_none_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidName, match="new and what begins with k_ mean other things"):
        registry.open(name)
    kernel = registry.open("fine").kernel
    with pytest.raises(InvalidName):
        registry.rename(kernel, name)
    assert kernel.name == "fine"


async def test_no_more_kernels_than_allowed_are_opened(registry: Registry) -> None:
    for n in range(5):
        registry.open(f"k{n}")
    with pytest.raises(TooManyKernels, match="all 5 kernels"):
        registry.open("k5")
    assert not registry.open("k0").new


async def test_a_retired_kernel_goes_with_its_children_and_frees_its_name(registry: Registry) -> None:
    main = registry.open("lab").kernel
    child = registry.open("build", home=main.id).kernel
    await asyncio.gather(main.ready(), child.ready())
    await registry.retire(main)
    assert main.closed
    assert child.closed
    assert len(registry) == 0
    assert registry.open("lab").new
