"""The services of one process: the web service keeps them open, a command opens them for one question."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from admin_api.errors import InvalidError
from admin_api.gateway import Gateway, Invoker
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from remoting.acl import AclError
from remoting.client.aio import RemotingClient, client_from
from sockets.tls import TlsFilesError

if TYPE_CHECKING:
    from admin_api.access.changes import AccessChanger
    from admin_api.access.places import Places
    from admin_api.access.service import AccessReader
    from admin_api.access.switching import Switches
    from admin_api.brokers.changes import BrokerChanger, CleaningService, NameServers
    from admin_api.brokers.service import BrokerService
    from admin_api.cluster.draining import Draining
    from admin_api.cluster.grpc_clients import GrpcClients
    from admin_api.cluster.members import Members
    from admin_api.cluster.reader import ClusterReader
    from admin_api.cluster.replication import Replication
    from admin_api.dead_letters.queues import DlqQueues
    from admin_api.dead_letters.service import Dlq
    from admin_api.groups.offset_changes import Offsets
    from admin_api.groups.producers import Producers
    from admin_api.groups.service import ConsumerGroups
    from admin_api.health_checks.service import HealthChecks
    from admin_api.messages.service import Messages
    from admin_api.topics.changes import TopicChanger
    from admin_api.topics.service import Topics, TopicTables
    from admin_api.upgrades.service import Upgrades


class Services:
    """Every service over one gateway. Made on a running loop; `client` is the caller's to close.

    A service is imported and made when it is first asked for: a command uses one, and the schemas of all take
    longer to build than its answer takes to come.
    """

    def __init__(self, client: Invoker, settings: Settings, account: str | None = None) -> None:
        """`account`: the access key that the client signs with."""
        self.settings = settings
        self.account = account
        self.gateway = Gateway(client, settings)
        self.directory = BrokerDirectory(self.gateway, settings)

    @cached_property
    def reader(self) -> "ClusterReader":
        from admin_api.cluster.reader import ClusterReader

        return ClusterReader(self.gateway, self.settings)

    @cached_property
    def cleaning(self) -> "CleaningService":
        from admin_api.brokers.changes import CleaningService

        return CleaningService(self.gateway, self.directory)

    @cached_property
    def messages(self) -> "Messages":
        from admin_api.messages.service import Messages
        from admin_api.sources.messages import MessageSource
        from admin_api.sources.offsets import OffsetSource

        source = MessageSource(self.gateway)
        return Messages(self.gateway, self.directory, source, OffsetSource(self.gateway))

    @cached_property
    def dlq_queues(self) -> "DlqQueues":
        from admin_api.dead_letters.queues import DlqQueues
        from admin_api.sources.messages import MessageSource
        from admin_api.sources.offsets import OffsetSource

        source = MessageSource(self.gateway)
        return DlqQueues(self.gateway, self.directory, source, OffsetSource(self.gateway))

    @cached_property
    def dlq(self) -> "Dlq":
        from admin_api.dead_letters.service import Dlq
        from admin_api.sources.offsets import OffsetSource

        return Dlq(self.messages, OffsetSource(self.gateway))

    @cached_property
    def consumer_groups(self) -> "ConsumerGroups":
        from admin_api.groups.service import ConsumerGroups

        return ConsumerGroups(self.gateway, self.directory)

    @cached_property
    def offsets(self) -> "Offsets":
        from admin_api.groups.offset_changes import Offsets

        return Offsets(self.gateway, self.consumer_groups.overview)

    @cached_property
    def health_checks(self) -> "HealthChecks":
        from admin_api.health_checks.service import HealthChecks

        groups, dead_letters = self.consumer_groups, self.dlq_queues
        return HealthChecks(
            self.gateway,
            self.directory,
            self.reader,
            groups.find,
            groups.overview.invalidate,
            dead_letters.groups,
            self.grpc_clients,
        )

    @cached_property
    def draining(self) -> "Draining":
        from admin_api.cluster.draining import Draining

        return Draining(self.gateway, self.replication)

    @cached_property
    def grpc_clients(self) -> "GrpcClients":
        from admin_api.cluster.grpc_clients import GrpcClients

        return GrpcClients(self.gateway, self.directory)

    @cached_property
    def name_servers(self) -> "NameServers":
        from admin_api.brokers.changes import NameServers

        return NameServers(self.directory.name_servers)

    @cached_property
    def replication(self) -> "Replication":
        from admin_api.cluster.replication import Replication

        return Replication(self.gateway, self.directory, self.reader)

    @cached_property
    def members(self) -> "Members":
        from admin_api.cluster.members import Members

        return Members(self.gateway, self.replication)

    @cached_property
    def topic_tables(self) -> "TopicTables":
        from admin_api.topics.service import TopicTables

        return TopicTables(self.gateway, self.directory, self.settings)

    @cached_property
    def topics(self) -> "Topics":
        from admin_api.topics.service import Topics

        return Topics(self.gateway, self.topic_tables, self.settings)

    @cached_property
    def topic_changes(self) -> "TopicChanger":
        from admin_api.topics.changes import TopicChanger

        return TopicChanger(self.gateway, self.topic_tables, self.settings)

    @cached_property
    def producers(self) -> "Producers":
        from admin_api.groups.producers import Producers

        return Producers(self.gateway, self.directory, self.topic_tables)

    @cached_property
    def brokers(self) -> "BrokerService":
        from admin_api.brokers.service import BrokerService

        return BrokerService(self.gateway, self.directory, self.settings)

    @cached_property
    def broker_changes(self) -> "BrokerChanger":
        from admin_api.brokers.changes import BrokerChanger

        return BrokerChanger(self.gateway, self.directory, self.brokers)

    @cached_property
    def access_places(self) -> "Places":
        from admin_api.access.places import Places

        return Places(self.gateway, self.directory)

    @cached_property
    def access(self) -> "AccessReader":
        from admin_api.access.service import AccessReader

        return AccessReader(self.gateway, self.access_places, is_signing=self.account is not None)

    @cached_property
    def access_changes(self) -> "AccessChanger":
        from admin_api.access.changes import AccessChanger

        return AccessChanger(self.access_places, self.account)

    @cached_property
    def access_switches(self) -> "Switches":
        from admin_api.access.switching import Switches

        return Switches(self.gateway, self.access_places, self.brokers, self.account)

    @cached_property
    def upgrades(self) -> "Upgrades":
        from admin_api.health_checks.facts import VitalsSource
        from admin_api.sources.broker_admin import RuntimeSource
        from admin_api.upgrades.service import Upgrades

        return Upgrades(self.gateway, self.reader, VitalsSource(RuntimeSource(self.gateway)))

    def make_all(self) -> None:
        """Imports and makes every service now, so that the first request does not wait for it."""
        for name, part in vars(type(self)).items():
            if isinstance(part, cached_property):
                getattr(self, name)

    async def close(self) -> None:
        """Ends what runs in the background."""
        await self.gateway.close()


@asynccontextmanager
async def open_services(
    settings: Settings,
    client: Invoker | None = None,
    watched: Callable[[Invoker], Invoker] = lambda client: client,
) -> AsyncIterator[Services]:
    """The services; over a client of their own, closed behind, unless one is given. `watched` may put
    something around it that sees every ask.

    Raises: InvalidError where the environment names an account for access control, or files for TLS, that
    cannot be used.
    """
    if client is None:
        client = own = _client(settings)
    else:
        own = None
    services = Services(watched(client), settings, None if own is None else own.account)
    try:
        yield services
    finally:
        await services.close()
        if own is not None:
            await own.close()


def _client(settings: Settings) -> RemotingClient:
    """Raises: InvalidError."""
    try:
        return client_from(os.environ, settings.tls)
    except (AclError, TlsFilesError) as error:
        raise InvalidError(str(error)) from error
