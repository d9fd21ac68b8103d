"""DescribeAcls, CreateAcls and DeleteAcls: the file of users, in Kafka's terms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
from typing import Any, Final

from dafka_core.security.permissions import Permissions
from dafka_kafka.api import (
    WHY,
    Answer,
    Api,
    Client,
    Feature,
    Response,
    encoded,
    on_cluster,
    serves,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.users import Acl, Operation, Pattern, Users, acls

NO_ACLS: Final = "no authorizer: every client may do everything"

ELSEWHERE: Final = (
    "permissions are in the gateway's file of users: 'dafka kafka-user change NAME --role "
    "ROLE --produce PATTERN --consume PATTERN --kafka-users FILE' changes it"
)

ALLOW: Final = 3  # the only permission type: without an ALLOW everything is denied
ANY: Final = 1  # in a filter: any resource type, operation or permission

HOST: Final = "*"


class PatternFilter(IntEnum):
    """Pattern types of filters, beside those of names."""

    ANY = 1
    MATCH = 2


class Acls(Feature):
    """Describes what users may do; only ``dafka kafka-user`` changes it.

    Args:
        users: the gateway's users; None lets everyone in.
    """

    def __init__(self, users: Users | None) -> None:
        self._users = users

    @serves(Api.DESCRIBE_ACLS, range(4), on_cluster(Operation.DESCRIBE))
    async def _describe(self, request: Any, client: Client) -> Response:
        if self._users is None:
            raise RefusedError(KafkaError.SECURITY_DISABLED, NO_ACLS)
        held, version = self._users.permissions(), client.version

        def answer() -> bytearray:
            found = {"error_message": None, "resources": resources(request, held)}
            return encoded(Api.DESCRIBE_ACLS, version, found)

        return await asyncio.to_thread(answer)  # thousands of users take seconds

    @serves(Api.CREATE_ACLS, range(4))
    async def _create(self, request: Any, client: Client) -> Answer:
        return {"results": [self._refusal(client)] * len(request.creations)}

    @serves(Api.DELETE_ACLS, range(4))
    async def _delete(self, request: Any, client: Client) -> Answer:
        return {"filter_results": [self._refusal(client)] * len(request.filters)}

    def _refusal(self, client: Client) -> Answer:
        if error := client.refusal(on_cluster(Operation.ALTER)):
            return {"error_code": error, "error_message": WHY}
        why = NO_ACLS if self._users is None else ELSEWHERE
        return {"error_code": KafkaError.SECURITY_DISABLED, "error_message": why}


def resources(request: Any, users: Iterable[Permissions]) -> list[Answer]:
    """Return the ACLs of users that match a filter, by resource."""
    found = sorted(each for one in users for each in acls(one) if fits(request, each))
    return [
        {
            "resource_type": kind,
            "resource_name": name,
            "pattern_type": pattern,
            "acls": [
                {
                    "principal": principal(each),
                    "host": HOST,
                    "operation": each.operation,
                    "permission_type": ALLOW,
                }
                for each in group
            ],
        }
        for (kind, name, pattern), group in groupby(found, lambda each: each[:3])
    ]


def principal(acl: Acl) -> str:
    """Return a user's name in Kafka's form."""
    return f"User:{acl.user}"


def fits(asked: Any, acl: Acl) -> bool:
    """Return whether a client's filter matches an ACL (Kafka's "AclBindingFilter")."""
    return (
        asked.resource_type_filter in (ANY, acl.resource)
        and _fits_name(asked.resource_name_filter, asked.pattern_type_filter, acl)
        and asked.principal_filter in (None, principal(acl))
        and asked.host_filter in (None, HOST)
        and asked.operation in (ANY, acl.operation)
        and asked.permission_type in (ANY, ALLOW)
    )


def _fits_name(name: str | None, pattern: int, acl: Acl) -> bool:
    if pattern not in (*PatternFilter, acl.pattern):
        return False
    if name is None or name == acl.name:
        return True
    if pattern != PatternFilter.MATCH:
        return False
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name == "*"
