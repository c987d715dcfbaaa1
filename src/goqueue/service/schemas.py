"""The verbs of the schema registry."""

from collections.abc import Sequence
from typing import Protocol

from goqueue.service.pending import Pending
from goqueue.service.verb import Action, Resource, Route, verb
from goqueue.wire import schema_reports as reports


class SchemaVerbs(Protocol):
    """The registry. A version is a number as text, `latest` or `-1`; subject None means all subjects together."""

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR)
    def subjects(
        self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False
    ) -> Pending[list[str]]: ...
    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> Pending[list[int]]: ...

    @verb(Resource.SUBJECT, Action.CREATE, Route.COORDINATOR)
    def register(self, subject: str, new: reports.NewSchema, *, normalize: bool = False) -> Pending[reports.SchemaInfo]:
        """A new version; the same schema again is the version that it has."""

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def lookup(
        self, subject: str, new: reports.NewSchema, *, deleted: bool = False, normalize: bool = False
    ) -> Pending[reports.SchemaInfo]:
        """The version of the subject that has this schema."""

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def get(self, subject: str, version: str = "latest", *, deleted: bool = False) -> Pending[reports.SchemaInfo]: ...
    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR)
    def by_id(self, schema_id: int, *, subject: str | None = None) -> Pending[reports.SchemaInfo]: ...
    @verb(
        Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def by_guid(self, guid: str) -> Pending[reports.SchemaInfo]: ...
    @verb(
        Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def uses(
        self, schema_id: int, *, subject: str | None = None, deleted: bool = False
    ) -> Pending[list[reports.SubjectVersion]]: ...
    @verb(
        Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def referenced_by(self, subject: str, version: str) -> Pending[list[int]]:
        """The ids of the schemas that refer to the version."""

    @verb(
        Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def find(
        self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False
    ) -> Pending[list[reports.SchemaInfo]]: ...
    @verb(
        Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def with_metadata(
        self, subject: str, wanted: dict[str, str], *, deleted: bool = False
    ) -> Pending[reports.SchemaInfo]:
        """The latest version whose metadata has these properties."""

    @verb(Resource.SUBJECT, Action.DELETE, Route.COORDINATOR)
    def delete_version(self, subject: str, version: str, *, permanent: bool = False) -> Pending[int]: ...
    @verb(Resource.SUBJECT, Action.DELETE, Route.COORDINATOR)
    def delete_subject(self, subject: str, *, permanent: bool = False) -> Pending[list[int]]: ...

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def compatibility(
        self, subject: str, new: reports.NewSchema, *, version: str | None = None, normalize: bool = False
    ) -> Pending[reports.Compatibility]:
        """Whether the schema could be registered: against one version, or as the subject's level says."""

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def level(self, subject: str | None = None, *, default_to_global: bool = False) -> Pending[str]:
        """The compatibility level."""

    @verb(Resource.SUBJECT, Action.ALTER, Route.COORDINATOR)
    def set_level(self, subject: str | None, level: str, *, policy: str | None = None) -> Pending[str]: ...
    @verb(Resource.SUBJECT, Action.ALTER, Route.COORDINATOR)
    def delete_level(self, subject: str | None) -> Pending[str]:
        """Back to the default level and policy; the level that it was."""

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def policy(self, subject: str | None = None, *, default_to_global: bool = False) -> Pending[str]:
        """The compatibility policy that is set; empty if none is, which means STRICT."""

    @verb(Resource.SUBJECT, Action.ALTER, Route.COORDINATOR)
    def set_policy(self, subject: str | None, policy: str | None) -> Pending[str]:
        """Another compatibility policy; None resets it."""

    @verb(Resource.SUBJECT, Action.DESCRIBE, Route.COORDINATOR)
    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> Pending[str]: ...
    @verb(Resource.SUBJECT, Action.ALTER, Route.COORDINATOR)
    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> Pending[str]: ...
    @verb(Resource.SUBJECT, Action.ALTER, Route.COORDINATOR)
    def delete_mode(self, subject: str | None) -> Pending[str]: ...

    @verb(Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR)
    def stats(self) -> Pending[reports.SchemaStats]: ...
    @verb(Resource.TOPIC, Action.DESCRIBE, Route.COORDINATOR, not_http="a publish that is refused says the same")
    def check(self, topic: str, values: Sequence[bytes]) -> Pending[list[str | None]]:
        """What is wrong with each value, if it were published to the topic."""

    @verb(
        Resource.CLUSTER, Action.DESCRIBE, Route.COORDINATOR, not_python="for Confluent's clients, which ask over HTTP"
    )
    def rendered(self, schema_id: int, format: str) -> Pending[str]:
        """The text in another form: `serialized` is the descriptor of a Protobuf schema in base64.

        A form that the schema's type does not have gives the text as it is.
        """
