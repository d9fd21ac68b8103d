"""DescribeAcls, CreateAcls and DeleteAcls: what the file of users says, in Kafka's words."""

from __future__ import annotations

from enum import IntEnum
from itertools import groupby
from typing import Any, Final

from dafka_kafka.api_versions import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway_node import Client, Feature, Handler
from dafka_kafka.schemas import (
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
)
from dafka_kafka.users import Acl, Pattern, Users, acls

NO_ACLS: Final = "whoever reaches the gateway may do everything: there is no authorizer"

ELSEWHERE: Final = (
    "what users may do is in the gateway's file of users: 'dafka kafka-user change NAME --role "
    "ROLE --produce PATTERN --consume PATTERN --kafka-users FILE' changes it"
)

ALLOW: Final = 3
"""The kind of permission that there is: nothing is denied that is not allowed anyway."""

ANY: Final = 1
"""In a filter: whatever kind, operation or permission it is."""

HOST: Final = "*"


class PatternFilter(IntEnum):
    """Which names a filter means, beside those of its own pattern."""

    ANY = 1
    MATCH = 2


class Acls(Feature):
    """Tells what users may do.  It is changed by ``dafka kafka-user`` alone.

    Args:
        users: who may use the gateway; anybody if there is none.
    """

    def __init__(self, users: Users | None) -> None:
        self._users = users
        self.handlers: dict[int, Handler] = {
            Api.DESCRIBE_ACLS: self._describe,
            Api.CREATE_ACLS: self._create,
            Api.DELETE_ACLS: self._delete,
        }

    async def _describe(self, request: Any, client: Client) -> Any:
        if self._users is None:
            error, why, found = KafkaError.SECURITY_DISABLED, NO_ACLS, list[Acl]()
        else:
            held = self._users.permissions()
            error, why = KafkaError.NONE, None
            found = sorted(each for one in held for each in acls(one) if fits(request, each))
        resource = DescribeAclsResponse.DescribeAclsResource
        acl = resource.AclDescription
        return DescribeAclsResponse(
            throttle_time_ms=0,
            error_code=error,
            error_message=why,
            resources=[
                resource(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    acls=[
                        acl(
                            principal=principal(each),
                            host=HOST,
                            operation=each.operation,
                            permission_type=ALLOW,
                        )
                        for each in group
                    ],
                )
                for (kind, name, pattern), group in groupby(found, lambda each: each[:3])
            ],
        )

    async def _create(self, request: Any, client: Client) -> Any:
        result = CreateAclsResponse.AclCreationResult
        results = [
            result(error_code=KafkaError.SECURITY_DISABLED, error_message=self._why)
            for _ in request.creations
        ]
        return CreateAclsResponse(throttle_time_ms=0, results=results)

    async def _delete(self, request: Any, client: Client) -> Any:
        result = DeleteAclsResponse.DeleteAclsFilterResult
        error = KafkaError.SECURITY_DISABLED
        results = [
            result(error_code=error, error_message=self._why, matching_acls=[])
            for _ in request.filters
        ]
        return DeleteAclsResponse(throttle_time_ms=0, filter_results=results)

    @property
    def _why(self) -> str:
        return NO_ACLS if self._users is None else ELSEWHERE


def principal(acl: Acl) -> str:
    """A user as Kafka names it."""
    return f"User:{acl.user}"


def fits(asked: Any, acl: Acl) -> bool:
    """Whether a client asks for an ACL; Kafka: "AclBindingFilter"."""
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
