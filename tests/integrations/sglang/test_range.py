"""Every release that irminsul claims has every attribute it uses, by their sources alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hosts
import pytest
from irminsul.integrations.sglang import attributes, compat
from sources import Sources

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

RELEASES = tuple(f"0.5.{number}" for number in range(16, 24))


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Sources:
    return Sources(hosts.require(request.param))


def wrong(release: Sources) -> list[str]:
    """Say everything that does not fit, as the check at the start of a server would."""
    found = []
    for target, wanted in (attributes.CALLS | attributes.OPTIONAL).items():
        try:
            names = release.parameters(target) if wanted else release.find(target)
        except LookupError as error:
            found.append(f"{target}: {error}")
            continue
        if wanted and list(names)[: len(wanted)] != list(wanted):
            found.append(f"{target} takes {names}, not {wanted}")
    for target, fields in attributes.FIELDS.items():
        try:
            missing = set(fields) - release.attributes(target)
        except LookupError as error:
            found.append(f"{target}: {error}")
            continue
        found += [f"{target} has no {name}" for name in sorted(missing)]
    for group in attributes.EITHER:
        members = [target.rpartition(".")[::2] for target in group]
        if not any(name in release.attributes(owner) for owner, name in members):
            found.append(f"none of {group}")
    return found


def test_every_attribute_is_there(release: Sources) -> None:
    assert wrong(release) == []


def imported(tree: ast.AST) -> set[str]:
    """Return what a file takes from ``sglang.srt``, unless it goes on where that is not there."""
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    tried = {id(node) for one in tries for part in one.body for node in ast.walk(part)}
    return {
        f"{node.module}.{name.name}".removeprefix("sglang.srt.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and id(node) not in tried
        if (node.module or "").startswith("sglang.srt.")
        for name in node.names
    }


def test_the_table_knows_what_the_plugin_imports() -> None:
    folder = hosts.ROOT / "python/irminsul/integrations/sglang"
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    used = set().union(*map(imported, trees))
    either = {target for group in attributes.EITHER for target in group}
    known = either | set().union(attributes.CALLS, attributes.OPTIONAL, attributes.FIELDS)
    assert len(used) > 15
    # Of a module or a class its members are named.
    assert [one for one in used if not any(f"{row}.".startswith(f"{one}.") for row in known)] == []


def test_every_way_into_the_tree_is_irminsuls(release: Sources) -> None:
    """A request whose rows came in by another way would have no subtree and no provenance."""
    file = hosts.ROOT / "python/irminsul/integrations/sglang/tree/cache.py"
    module = ast.parse(file.read_text())
    cache = next(node for node in module.body if isinstance(node, ast.ClassDef))
    wrapped = {node.name for node in cache.body if isinstance(node, ast.FunctionDef)}
    callers = release.callers("mem_cache.radix_cache.RadixCache", "insert")
    ways = {name for name in callers if not name.startswith("_")}
    assert ways, "something inserts"
    assert ways <= wrapped


def test_the_range_is_the_one_that_is_declared() -> None:
    project = (hosts.ROOT / "pyproject.toml").read_text()
    assert f'"sglang{compat.RANGE}"' in project
    assert f">={RELEASES[0]},<0.5.{16 + len(RELEASES)}" == compat.RANGE
    makefile = (hosts.ROOT / "Makefile").read_text()
    named = re.findall(r"^SGLANG_(?:VERSIONS|READ) \?= (.*)$", makefile, re.MULTILINE)
    assert sorted(" ".join(named).split()) == sorted(RELEASES)
    assert set(hosts.VERSIONS) < set(RELEASES)


def release_of(folder: Path, source: str) -> Sources:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / "pool.py").write_text(source)
    (package / "names.py").write_text("from .pool import Pool as Other\n")
    return Sources(folder)


POOL = """
try:
    class Base:
        size: int
        def move(self, source, target, *, count): self.moved = count
except ImportError:
    pass

class Pool(Base):
    @classmethod
    def make(cls, size): ...
"""


def test_the_reader_follows_imports_bases_and_conditions(tmp_path: Path) -> None:
    release = release_of(tmp_path, POOL)
    assert release.parameters("names.Other.move") == ["self", "source", "target", "count"]
    assert release.parameters("pool.Pool.make") == ["size"]
    assert {"size", "moved", "move", "make"} <= release.attributes("names.Other")


@pytest.mark.parametrize("target", ["pool.Pool.absent", "pool.Absent", "absent.Pool", "names.x.y"])
def test_the_reader_says_what_is_missing(target: str, tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        release_of(tmp_path, POOL).find(target)
