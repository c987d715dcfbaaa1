"""What can be asked of a broker about schemas. The rules are those of `service.py`."""

from collections.abc import Sequence
from typing import Protocol

from goqueue.service.pending import Pending
from goqueue.wire import schema_reports as reports


class SchemaVerbs(Protocol):
    """The registry. A version is a number as text, `latest` or `-1`; subject None means all subjects together."""

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]: ...
    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]: ...

    def register(self, subject: str, new: reports.NewSchema, *, normalize: bool = False) -> Pending[reports.SchemaInfo]:
        """A new version; the same schema again is the version that it has."""

    def lookup(
        self, subject: str, new: reports.NewSchema, *, deleted: bool = False, normalize: bool = False
    ) -> reports.SchemaInfo:
        """The version of the subject that has this schema."""

    def get(self, subject: str, version: str = "latest", *, deleted: bool = False) -> reports.SchemaInfo: ...
    def by_id(self, schema_id: int, *, subject: str | None = None) -> reports.SchemaInfo: ...
    def by_guid(self, guid: str) -> reports.SchemaInfo: ...
    def uses(
        self, schema_id: int, *, subject: str | None = None, deleted: bool = False
    ) -> list[reports.SubjectVersion]: ...
    def referenced_by(self, subject: str, version: str) -> list[int]:
        """The ids of the schemas that refer to the version."""

    def find(
        self, *, prefix: str = "", deleted: bool = False, latest_only: bool = False
    ) -> list[reports.SchemaInfo]: ...
    def with_metadata(self, subject: str, wanted: dict[str, str], *, deleted: bool = False) -> reports.SchemaInfo:
        """The latest version whose metadata has these properties."""

    def delete_version(self, subject: str, version: str, *, permanent: bool = False) -> Pending[int]: ...
    def delete_subject(self, subject: str, *, permanent: bool = False) -> Pending[list[int]]: ...

    def compatibility(
        self, subject: str, new: reports.NewSchema, *, version: str | None = None, normalize: bool = False
    ) -> reports.Compatibility:
        """Whether the schema could be registered: against one version, or as the subject's level says."""

    def level(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility level."""

    def set_level(self, subject: str | None, level: str, *, policy: str | None = None) -> Pending[str]: ...
    def delete_level(self, subject: str | None) -> Pending[str]:
        """Back to the default level and policy; the level that it was."""

    def policy(self, subject: str | None = None, *, default_to_global: bool = False) -> str:
        """The compatibility policy that is set; empty if none is, which means STRICT."""

    def set_policy(self, subject: str | None, policy: str | None) -> Pending[str]:
        """Another compatibility policy; None resets it."""

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> str: ...
    def set_mode(self, subject: str | None, mode: str, *, force: bool = False) -> Pending[str]: ...
    def delete_mode(self, subject: str | None) -> Pending[str]: ...

    def stats(self) -> reports.SchemaStats: ...
    def check(self, topic: str, values: Sequence[bytes]) -> list[str | None]:
        """What is wrong with each value, if it were published to the topic."""

    def rendered(self, schema_id: int, format: str) -> str:
        """The text in another form: `serialized` is the descriptor of a Protobuf schema in base64.

        A form that the schema's type does not have gives the text as it is.
        """
