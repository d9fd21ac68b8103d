"""Keys for tests that let them in and shut them out."""

from dafka_core.config.node_options import KeyFiles
from dafka_core.security.key_files import PUBLIC
from tests.integration.nodes.locked import Keys


class KeyDirectory(Keys):
    """The keys of nodes, for clients that are none."""

    def files(self, name: str) -> KeyFiles:
        """Return the files of a key's owner."""
        return KeyFiles(**self.of(name))

    def let_in(self, name: str) -> None:
        """Copies a key to where it is let in, as a whole."""
        part = self.allowed / f".{name}"
        part.write_text((self.away / f"{name}{PUBLIC}").read_text())
        part.rename(self.allowed / f"{name}{PUBLIC}")

    def shut_out(self, name: str) -> None:
        """Takes it away from there."""
        (self.allowed / f"{name}{PUBLIC}").unlink()
