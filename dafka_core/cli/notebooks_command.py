"""``dafka notebooks``: copies of the notebooks that come with the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from dafka_core.cli import output
from dafka_core.cli.job_command import shipped_files
from dafka_core.cli.list_commands import AsJson
from dafka_core.durable_files import make_directory, open_new
from dafka_core.errors import ConfigError
from dafka_core.names import escape
from dafka_core.near_names import what_there_is

_SUFFIX: Final = ".ipynb"


def notebooks(
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help="Where to copy them, which is made if need be; without it they are listed.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", show_default=False, help="Only these; all without."),
    ] = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of these names that are there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the notebooks of the package to a directory, or list them.

    Each starts a cluster of its own.
    """
    found = {name: path.read_bytes() for name, path in shipped_files("notebooks", _SUFFIX).items()}
    if directory is None:
        rows = [(name, _title(text)) for name, text in found.items()]
        output.table(("notebook", "about"), rows, as_json=as_json, wrapped=("about",))
        return
    if directory in found and not names and not Path(directory).exists():
        why = f"is a notebook; 'dafka notebooks . {directory}' copies it to this directory"
        raise ConfigError("dir", directory, why, "argument")
    asked = list(dict.fromkeys(name.removesuffix(_SUFFIX) for name in names or found))
    for name in asked:
        if name not in found:
            near = what_there_is(name, found, "notebooks")
            raise ConfigError("name", escape(name), f"is no notebook; {near}", "argument")
    paths = {name: Path(directory) / f"{name}{_SUFFIX}" for name in asked}
    there = [path.name for path in paths.values() if os.path.lexists(path)]
    if there and not force:
        why = f"has {', '.join(there)} already; --force replaces what is there"
        raise ConfigError("dir", escape(directory), why, "argument")
    try:
        make_directory(Path(directory))
        for name, path in paths.items():
            with open_new(path, replaces=force) as file:
                file.write(found[name])
    except OSError as error:
        why = f"cannot be written to: {error.strerror}"
        raise ConfigError("dir", escape(directory), why, "argument") from None
    output.table(("notebook", "file"), [(n, str(p)) for n, p in paths.items()], as_json=as_json)


def _title(text: bytes) -> str:
    import json

    [heading, *_] = json.loads(text)["cells"][0]["source"]
    return str(heading).strip("# \n")
