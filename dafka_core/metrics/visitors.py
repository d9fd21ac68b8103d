"""Who may ask how nodes are."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from dafka_core.errors import ConfigError
from dafka_core.metrics.options import MetricsOptions
from dafka_core.nodes.addresses import LOCALHOST, is_loopback
from dafka_core.security_options import INSECURE_ENVIRONMENT, SecurityOptions
from dafka_core.web_access import WHY, Answer, Door, bearer, is_own_name

ANOTHER_NAME: Final = "asked for by a name that others may point here: use 127.0.0.1 or localhost"

_log: Final = logging.getLogger("dafka.metrics")


class Visitors:
    """Anybody on this machine, and who says the token; anybody at all if that is meant.

    Args:
        host: where it is listened.

    Raises:
        ConfigError: other machines would reach it without a token, or its file is wrong.
    """

    def __init__(self, host: str, config: MetricsOptions, security: SecurityOptions) -> None:
        self._is_local = is_loopback(host)
        self._door: Door | None = None
        if config.metrics_token_file:
            self._door = Door("metrics", "metrics_token_file", config.metrics_token_file)
        elif not self._is_local:
            if not security.may_be_open:
                why = (
                    f"opens {host} to other machines, and whoever reaches it reads names of topics "
                    "and nodes, and their numbers: set metrics_token_file ('dafka keys token FILE' "
                    "makes one), or, if everybody there is trusted, insecure (or "
                    f"{INSECURE_ENVIRONMENT}=true in the environment)"
                )
                raise ConfigError("metrics", config.metrics, why)
            extra = {"event": "open_port"}
            _log.warning("metrics at %s: whoever reaches them reads them", host, extra=extra)

    def refusal(self, environ: Mapping[str, Any]) -> tuple[HTTPStatus, str] | None:
        """Why a request is not answered, if it is not."""
        # A page elsewhere may have its visitor's browser ask by a name that it points here.
        asked = environ.get("HTTP_HOST")
        if self._is_local and asked and not is_own_name(asked, (LOCALHOST,), is_local=True):
            return HTTPStatus.MISDIRECTED_REQUEST, ANOTHER_NAME
        if self._door is None:
            return None
        said = bearer(environ.get("HTTP_AUTHORIZATION", ""))
        address = str(environ.get("REMOTE_ADDR", "?"))
        found = Answer.WRONG if said is None else self._door.judge(said, address)
        return None if found is Answer.RIGHT else (HTTPStatus(found), WHY[found])
