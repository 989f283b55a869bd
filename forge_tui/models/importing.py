"""The import of a model file under a stable module name, with the files beside it importable."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from forge_tui.core.records import ModelSpec
from forge_tui.models.faults import explain
from forge_tui.models.spec import is_example

_NOT_OWN = {"site-packages", "dist-packages", ".venv", "venv"}


def import_model(spec: ModelSpec) -> types.ModuleType:
    """Run the model file as a module that stays in `sys.modules`, so that pickles, tracebacks and sources work.

    Raises:
        ModelError: the import raised.
    """
    path = Path(spec.path)
    try:
        if is_example(spec):
            return importlib.import_module(f"forge_tui.examples.{path.stem}")
        package = _package_name(path)
        if package:
            root = path.parents[package.count(".")]
            with _first_on_path(root):
                module = importlib.import_module(package)
            if Path(module.__file__ or "").resolve() == path:
                return module
        with _first_on_path(path.parent):
            return _run_file(path)
    except BaseException as error:
        raise explain(error, spec, f"Importing {path.name} failed") from error


def is_beside(module: types.ModuleType | None, source: types.ModuleType) -> bool:
    """Whether a module's file lies in the model file's folder or below it, and not in an installed package."""
    file, own = getattr(module, "__file__", None), source.__file__
    if not file or not own:
        return False
    path, folder = Path(file).resolve(), Path(own).resolve().parent
    return path.is_relative_to(folder) and not _NOT_OWN.intersection(path.relative_to(folder).parts)


def module_name(path: Path) -> str:
    """The name under which a model file is imported: the same in every process."""
    stem = re.sub(r"\W", "_", path.stem)
    return f"forge_model_{stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _run_file(path: Path) -> types.ModuleType:
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _package_name(path: Path) -> str:
    """The dotted name of a file that uses relative imports inside a package, else nothing."""
    if not (path.parent / "__init__.py").exists():
        return ""
    if not re.search(r"^\s*from\s+\.", path.read_text(errors="replace"), re.MULTILINE):
        return ""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) if all(part.isidentifier() for part in parts) else ""


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """The folder first while importing, last afterwards: late imports still work, and no other module is shadowed."""
    text = str(folder)
    sys.path.insert(0, text)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(text)
        if text not in sys.path:
            sys.path.append(text)
