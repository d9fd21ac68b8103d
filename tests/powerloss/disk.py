"""The states of a disk that a power cut may leave, from the events of ``recorder.c``.

A file has the contents of its last sync, and of each page or sector written since then any version.
A directory has the names of its last sync, and of each name changed since then any state; a file
system with a journal keeps the order of such changes, and makes an earlier one durable, too.
"""

import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

PAGE, SECTOR = 4096, 512

ZEROS: Final = bytes(PAGE)

V = TypeVar("V")

_HEADER: Final = struct.Struct("=8sQqIIIIQ")


class Event(NamedTuple):
    """A change of the disk, as ``recorder.c`` has written it."""

    kind: str
    inode: int
    offset: int
    path: str
    other: str
    is_synced: bool
    data: bytes


def _compiled(directory: Path) -> Path:
    """Compile the recorder; exit with a remedy if no compiler is installed."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("the recorder of power cuts needs a C compiler: install the package gcc or clang")
    made = directory / f"recorder{sysconfig.get_config_var('SHLIB_SUFFIX')}"
    source = Path(__file__).with_name("recorder.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, "-o", str(made), str(source), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return made


def recorded(command: Sequence[str], root: Path) -> list[Event]:
    """Run a command, and return its changes below a directory; the recorder is beside it."""
    log = root.with_name("log")
    own = {"LD_PRELOAD": _compiled(root.parent), "POWERLOSS_ROOT": root, "POWERLOSS_LOG": log}
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", **{name: str(own[name]) for name in own}}
    subprocess.run(command, env=variables, check=True)
    return [*_events(log)]


def _events(log: Path) -> Iterator[Event]:
    with log.open("rb") as file:
        while header := file.read(_HEADER.size):
            kind, inode, offset, path, other, synced, _, size = _HEADER.unpack(header)
            names = file.read(path).decode(), file.read(other).decode()
            yield Event(
                kind.rstrip(b"\0").decode(), inode, offset, *names, bool(synced), file.read(size)
            )


class File:
    """A file: the versions of each page since the last sync, the synced one first."""

    def __init__(self, content: bytes = b"") -> None:
        self.sizes = [0]
        self._pages: dict[int, list[bytes]] = {}
        self.is_mapped = False
        self.write(0, content, is_synced=True)
        self.sync()

    def write(self, offset: int, data: bytes, *, is_synced: bool) -> None:
        """Write data; ``is_synced`` by O_DSYNC, which includes only these sectors."""
        end = offset + len(data)
        self.sizes.append(max(self.sizes[-1], end))
        for at in range(offset // PAGE * PAGE, end, PAGE):
            versions = self._pages.setdefault(at, [ZEROS])
            first, last = max(at, offset), min(at + PAGE, end)
            part = data[first - offset : last - offset]
            page = versions[-1][: first - at] + part + versions[-1][last - at :]
            versions.append(page)
            if is_synced:
                start, stop = _sectors(first - at, last - at)
                versions[:] = [each[:start] + page[start:stop] + each[stop:] for each in versions]
        if is_synced:
            self.sizes = self.sizes[-1:]

    def resize(self, size: int) -> None:
        if size < self.sizes[-1]:
            self.write(size, bytes(self.sizes[-1] - size), is_synced=False)
        self.sizes.append(size)

    def sync(self) -> None:
        self.sizes = self.sizes[-1:]
        self._pages = {at: versions[-1:] for at, versions in self._pages.items()}

    def newest(self) -> bytes:
        size = self.sizes[-1]
        pages = (self._pages.get(at, [ZEROS])[-1] for at in range(0, size, PAGE))
        return b"".join(pages)[:size]

    def left(self, chance: Random, bias: float) -> bytes:
        """Return contents that a power cut may leave; ``bias`` is the share of newest pages."""
        size = _version(self.sizes, chance, bias)
        content = bytearray()
        for at in range(0, size, PAGE):
            versions = self._pages.get(at, [ZEROS])
            if self.is_mapped and chance.random() < 0.5:  # LMDB's list of readers
                versions = [chance.randbytes(PAGE)]
            unit = chance.choice((PAGE, PAGE, PAGE, SECTOR)) if len(versions) > 1 else PAGE
            for start in range(0, PAGE, unit):
                content += _version(versions, chance, bias)[start : start + unit]
        return bytes(content[:size])


def _sectors(first: int, last: int) -> tuple[int, int]:
    return first // SECTOR * SECTOR, -(-last // SECTOR) * SECTOR


def _version(versions: Sequence[V], chance: Random, bias: float) -> V:
    if bias == 0:
        return versions[0]
    return versions[-1] if chance.random() < bias else chance.choice(versions)


class Directory:
    """A directory: each name's states since its last sync, the durable one first."""

    def __init__(self) -> None:
        self.names: dict[str, list[Node | None]] = {}

    def sync(self) -> None:
        self.names = {name: states[-1:] for name, states in self.names.items() if states[-1]}


Node = File | Directory

_Change = tuple[Directory, str, Node | None]


class Disk:
    """The disk below a directory, which was synced when this is made.

    Args:
        syncs: False for a disk that ignores all syncs, on which tests must find losses.
    """

    def __init__(self, root: Path, *, syncs: bool = True) -> None:
        self._root, self._syncs = root, syncs
        self._nodes: dict[int, Node] = {}
        self._journal: list[list[_Change]] = []
        self._committed = 0
        top = self._load(root)
        assert isinstance(top, Directory)
        self._top = top

    def apply(self, event: Event, *, is_done: bool = True) -> None:
        """Apply an event; if it is not done, none of it is certainly durable."""
        syncs = is_done and self._syncs
        match event.kind:
            case "open" | "empty":
                node = self._find(event.path)
                if node is None:
                    node = self._nodes[event.inode] = File()
                    self._change((event.path, node))
                if event.kind == "empty":
                    self._file(event).resize(0)
            case "write":
                is_synced = event.is_synced and syncs
                self._file(event).write(event.offset, event.data, is_synced=is_synced)
            case "resize":
                self._file(event).resize(event.offset)
            case "map":
                self._file(event).is_mapped = True
            case "sync" | "syncall":
                if syncs:
                    self._sync([self._nodes[event.inode]] if event.inode else self._nodes.values())
            case _:
                self._change_name(event)

    def _sync(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.sync()
            for at, changes in enumerate(self._journal, 1):
                if any(directory is node for directory, _, _ in changes):
                    self._committed = max(self._committed, at)

    def _change_name(self, event: Event) -> None:
        match event.kind:
            case "mkdir":
                self._nodes[event.inode] = made = Directory()
                self._change((event.path, made))
            case "remove":
                self._change((event.path, None))
            case "link":
                self._change((event.other, self._find(event.path)))
            case "rename":
                self._change((event.other, self._find(event.path)), (event.path, None))
            case _:
                raise AssertionError(event.kind)

    def newest(self, name: str) -> bytes:
        """Return the newest content of a file in the top directory."""
        node = self._find(str(self._root / name))
        return node.newest() if isinstance(node, File) else b""

    def left(self, target: Path, chance: Random, *, without: Sequence[str] = ()) -> str:
        """Create the files that a power cut may leave now; return how it chose."""
        bias = chance.choice((0, 1, 0.1, 0.5, 0.5, 0.9))
        names = None
        if chance.random() < 0.5:
            kept = len(self._journal) if bias == 1 else self._committed
            names = self._replayed(chance.randint(kept, len(self._journal)) if bias else kept)
        self._write(self._top, target, chance, bias, names, without)
        return f"{bias:.0%} of the newest, {'without' if names is None else 'with'} a journal"

    def _write(
        self,
        directory: Directory,
        target: Path,
        chance: Random,
        bias: float,
        names: dict[int, dict[str, Node]] | None,
        without: Sequence[str] = (),
    ) -> None:
        target.mkdir(exist_ok=True)
        for name, states in directory.names.items():
            if name in without:
                continue
            if names is not None:
                node = names.get(id(directory), {}).get(name)
            else:
                node = _version(states, chance, bias)
            if isinstance(node, Directory):
                self._write(node, target / name, chance, bias, names)
            elif node is not None:
                (target / name).write_bytes(node.left(chance, bias))

    def check(self) -> None:
        """Raise AssertionError if the newest state is not the real one: an event was missed."""
        self._check(self._top, self._root)

    def _check(self, directory: Directory, path: Path) -> None:
        newest = {name: states[-1] for name, states in directory.names.items()}
        found = {name: node for name, node in newest.items() if node is not None}
        assert sorted(found) == sorted(each.name for each in path.iterdir()), path
        for name, node in found.items():
            if isinstance(node, Directory):
                self._check(node, path / name)
            elif not node.is_mapped:
                assert node.newest() == (path / name).read_bytes(), path / name

    def _load(self, path: Path) -> Node:
        node: Node
        if path.is_dir():
            node = Directory()
            node.names = {each.name: [self._load(each)] for each in path.iterdir()}
            self._journal.append([(node, name, states[0]) for name, states in node.names.items()])
            self._committed = len(self._journal)
        else:
            node = File(path.read_bytes())
        self._nodes[path.stat().st_ino] = node
        return node

    def _file(self, event: Event) -> File:
        node = self._nodes[event.inode]
        assert isinstance(node, File)
        return node

    def _parent(self, path: str) -> Directory:
        directory = self._top
        for name in Path(path).relative_to(self._root).parts[:-1]:
            found = directory.names[name][-1]
            assert isinstance(found, Directory)
            directory = found
        return directory

    def _find(self, path: str) -> Node | None:
        return self._parent(path).names.get(Path(path).name, [None])[-1]

    def _change(self, *changes: tuple[str, Node | None]) -> None:
        found = [(self._parent(path), Path(path).name, node) for path, node in changes]
        for directory, name, node in found:
            directory.names.setdefault(name, [None]).append(node)
        self._journal.append(found)

    def _replayed(self, count: int) -> dict[int, dict[str, Node]]:
        names: dict[int, dict[str, Node]] = {}
        for directory, name, node in chain.from_iterable(self._journal[:count]):
            found = names.setdefault(id(directory), {})
            if node is None:
                found.pop(name, None)
            else:
                found[name] = node
        return names
