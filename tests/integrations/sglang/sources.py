"""An unpacked SGLang and the table of attributes -> what does not fit, without importing SGLang.

Follows imports and base classes in the syntax trees, so that a release can be checked in seconds
and without anything it depends on.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard, cast

Function = ast.FunctionDef | ast.AsyncFunctionDef
Found = ast.ClassDef | Function | ast.stmt


class Sources:
    """The source tree of one SGLang release.

    Parameters
    ----------
    folder
        What holds the package ``sglang``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.module = functools.cache(self._module)

    def find(self, dotted: str) -> tuple[str, Found]:
        """Return the module that defines ``sglang.srt.<dotted>``, and its definition.

        Raises
        ------
        LookupError
            Nothing of that name; the message says which part is missing.
        """
        parts = ["sglang", "srt", *dotted.split(".")]
        for count in range(len(parts) - 1, 1, -1):
            module = ".".join(parts[:count])
            if self.module(module) is None:
                continue
            where, found = self._in_module(module, parts[count])
            for name in parts[count + 1 :]:
                where, found = self._in_class(where, found, name)
            return where, found
        raise LookupError(f"no module holds {dotted}")

    def parameters(self, dotted: str) -> list[str]:
        """Return the names of a function's parameters, without ``cls``."""
        _, found = self.find(dotted)
        if not isinstance(found, Function):
            raise LookupError(f"{dotted} is no function")
        arguments = found.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return [argument.arg for argument in names if argument.arg != "cls"]

    def attributes(self, dotted: str) -> set[str]:
        """Return every name that a class declares or assigns to ``self``, its bases' included."""
        where, found = self.find(dotted)
        return set(self._attributes(where, cast(ast.ClassDef, found)))

    def callers(self, dotted: str, name: str) -> set[str]:
        """Return the methods of a class that call its method `name`, also by way of others."""
        where, owner = self.find(dotted)
        mentions: dict[str, set[str]] = {}
        for method in self._methods(where, cast(ast.ClassDef, owner)):
            names = {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
            mentions.setdefault(method.name, names)
        found_names, before = {name}, 0
        while len(found_names) > before:
            before = len(found_names)
            found_names |= {method for method, names in mentions.items() if names & found_names}
        return found_names - {name}

    def _module(self, name: str) -> ast.Module | None:
        base = self._folder.joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None

    def _in_module(self, module: str, name: str) -> tuple[str, Found]:
        tree = self.module(module)
        if tree is None:
            raise LookupError(f"no module {module}")
        for statement in _statements(tree.body):
            if name in _defined(statement):
                return module, statement
            if isinstance(statement, ast.ImportFrom) and statement.module:
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self._in_module(_absolute(module, statement), alias.name)
                    if alias.name == "*":
                        with contextlib.suppress(LookupError):
                            return self._in_module(_absolute(module, statement), name)
        raise LookupError(f"{module} has no {name}")

    def _in_class(self, module: str, owner: Found, name: str) -> tuple[str, Found]:
        if not isinstance(owner, ast.ClassDef):
            raise LookupError(f"{name} is looked for in what is no class")
        for statement in _statements(owner.body):
            if name in _defined(statement):
                return module, statement
        for where, base in self._bases(module, owner):
            try:
                return self._in_class(where, base, name)
            except LookupError:
                continue
        raise LookupError(f"{owner.name} has no {name}")

    def _bases(self, module: str, owner: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        for base in owner.bases:
            if isinstance(base, ast.Name):
                try:
                    where, found = self._in_module(module, base.id)
                except LookupError:
                    continue  # a builtin, or a class from elsewhere
                if isinstance(found, ast.ClassDef):
                    yield where, found

    def _methods(self, module: str, owner: ast.ClassDef) -> Iterator[Function]:
        yield from (node for node in owner.body if isinstance(node, Function))
        for where, base in self._bases(module, owner):
            yield from self._methods(where, base)

    def _attributes(self, module: str, owner: ast.ClassDef) -> Iterator[str]:
        for statement in _statements(owner.body):
            yield from _defined(statement)
        for node in ast.walk(owner):
            if _assigns_to_self(node):
                yield node.attr
        for where, base in self._bases(module, owner):
            yield from self._attributes(where, base)


def _assigns_to_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return stored and isinstance(node.value, ast.Name) and node.value.id == "self"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, those under conditions included."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _statements(handler.body)


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | Function):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id]
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _absolute(module: str, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return str(statement.module)
    above = module.split(".")[: -statement.level]
    return ".".join([*above, str(statement.module)])
