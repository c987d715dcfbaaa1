"""The Litestar application: the routes, and how they answer."""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from litestar import HttpMethod, Litestar, Request, Response, get, route
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from goqueue.doors.http.answers import JsonRequest, JsonResponse
from goqueue.doors.http.context import SHOWS_INTERNAL, Shared, request_context
from goqueue.doors.http.docs_page import DOCS_PAGE, FIRST_PAGE
from goqueue.doors.http.openapi import describe
from goqueue.doors.http.refusals import ErrorBody, allowed_methods, body_of, encode, headers_of, understood
from goqueue.doors.http.routes import dead_letters as routes_dead_letters
from goqueue.doors.http.routes import delayed as routes_delayed
from goqueue.doors.http.routes import groups as routes_groups
from goqueue.doors.http.routes import health as routes_health
from goqueue.doors.http.routes import info as routes_info
from goqueue.doors.http.routes import poll as routes_poll
from goqueue.doors.http.routes import positions as routes_positions
from goqueue.doors.http.routes import priorities as routes_priorities
from goqueue.doors.http.routes import producers as routes_producers
from goqueue.doors.http.routes import publish as routes_publish
from goqueue.doors.http.routes import read as routes_read
from goqueue.doors.http.routes import schedules as routes_schedules
from goqueue.doors.http.routes import schemas as routes_schemas
from goqueue.doors.http.routes import schemas_by_id as routes_schemas_by_id
from goqueue.doors.http.routes import schemas_rules as routes_schemas_rules
from goqueue.doors.http.routes import settle as routes_settle
from goqueue.doors.http.routes import stream as routes_stream
from goqueue.doors.http.routes import topics as routes_topics
from goqueue.doors.http.routes import traces as routes_traces
from goqueue.doors.http.routes import transactions as routes_transactions
from goqueue.doors.http.schema_answers import SchemaResponse, is_below, refusal
from goqueue.doors.http.strictness import LENIENT, refuse_unknown
from goqueue.topics.config import refuse_internal

ROUTES: tuple[HTTPRouteHandler, ...] = (
    routes_health.health,
    routes_health.alive,
    routes_health.ready,
    routes_info.version,
    routes_info.stats,
    routes_info.metrics,
    routes_topics.create_topic,
    routes_topics.list_topics,
    routes_topics.show_topic,
    routes_topics.delete_topic,
    routes_topics.show_config,
    routes_topics.change_config,
    routes_topics.list_partitions,
    routes_topics.find_offsets,
    routes_publish.publish,
    routes_read.read_partition,
    routes_read.read_topic,
    routes_stream.follow,
    routes_delayed.list_delayed,
    routes_delayed.show_delayed,
    routes_delayed.show_delayed_exactly,
    routes_delayed.cancel_delayed,
    routes_delayed.reschedule_delayed,
    routes_delayed.cancel_delayed_of_key,
    routes_delayed.reschedule_delayed_of_key,
    routes_delayed.delay_stats,
    routes_schedules.create_schedule,
    routes_schedules.list_schedules,
    routes_schedules.show_schedule,
    routes_schedules.change_schedule,
    routes_schedules.delete_schedule,
    routes_schedules.pause_schedule,
    routes_schedules.resume_schedule,
    routes_schedules.run_schedule,
    routes_groups.join_group,
    routes_groups.join_group_cooperatively,
    routes_groups.heartbeat,
    routes_groups.heartbeat_cooperatively,
    routes_groups.revoke,
    routes_groups.leave_group,
    routes_groups.list_groups,
    routes_groups.show_group,
    routes_groups.show_cooperative_group,
    routes_groups.delete_group,
    routes_groups.show_assignment,
    routes_groups.list_blocked,
    routes_groups.group_rebalance_stats,
    routes_groups.rebalance_stats,
    routes_positions.show_positions,
    routes_positions.commit_positions,
    routes_positions.reset_positions,
    routes_poll.poll,
    routes_settle.ack,
    routes_settle.nack,
    routes_settle.reject,
    routes_settle.extend,
    routes_settle.reliability_stats,
    routes_dead_letters.list_queues,
    routes_dead_letters.show_queue,
    routes_dead_letters.list_dead_letters,
    routes_dead_letters.redrive,
    routes_dead_letters.show_redrive,
    routes_dead_letters.stop_redrive,
    routes_priorities.priority_stats,
    routes_schemas.list_subjects,
    routes_schemas.list_versions,
    routes_schemas.register_schema,
    routes_schemas.look_up_schema,
    routes_schemas.show_version,
    routes_schemas.show_text_of_version,
    routes_schemas.list_referrers,
    routes_schemas.find_version,
    routes_schemas.delete_version,
    routes_schemas.delete_subject,
    routes_schemas_by_id.show_schema,
    routes_schemas_by_id.show_text,
    routes_schemas_by_id.list_subjects_of_schema,
    routes_schemas_by_id.list_uses,
    routes_schemas_by_id.show_schema_by_guid,
    routes_schemas_by_id.list_types,
    routes_schemas_by_id.list_schemas,
    routes_schemas_by_id.list_contexts,
    routes_schemas_by_id.schema_stats,
    routes_schemas_rules.check_compatibility,
    routes_schemas_rules.check_compatibility_with,
    routes_schemas_rules.show_level,
    routes_schemas_rules.set_level,
    routes_schemas_rules.reset_level,
    routes_schemas_rules.show_level_of,
    routes_schemas_rules.set_level_of,
    routes_schemas_rules.reset_level_of,
    routes_schemas_rules.show_mode,
    routes_schemas_rules.set_mode,
    routes_schemas_rules.reset_mode,
    routes_schemas_rules.show_mode_of,
    routes_schemas_rules.set_mode_of,
    routes_schemas_rules.reset_mode_of,
    routes_producers.init_producer,
    routes_producers.heartbeat_of_producer,
    routes_transactions.begin_transaction,
    routes_transactions.publish_in_transaction,
    routes_transactions.add_offsets,
    routes_transactions.add_acks,
    routes_transactions.add_partition,
    routes_transactions.commit_transaction,
    routes_transactions.abort_transaction,
    routes_transactions.list_transactions,
    routes_transactions.transaction_stats,
    routes_transactions.show_transaction,
    routes_transactions.abort_by_admin,
    routes_traces.list_traces,
    routes_traces.search_traces,
    routes_traces.trace_stats,
    routes_traces.show_trace,
)


@cache
def routes() -> Litestar:
    """All routes. They take long to put together, so all doors of a process share them; requests name their door."""
    return Litestar(
        [*_options(), *ROUTES, openapi, docs, first_page],
        dependencies={"context": Provide(request_context, sync_to_thread=False)},
        exception_handlers={Exception: refuse},
        guards=[refuse_internal_topic, refuse_unknown],
        request_class=JsonRequest,
        response_class=JsonResponse,
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


async def refuse_internal_topic(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """No route takes the name of an internal topic, but for those that say so."""
    topic = connection.path_params.get("topic")
    if topic is not None and not handler.opt.get(SHOWS_INTERNAL):
        refuse_internal(topic)


@get("/openapi.json", sync_to_thread=True)
def openapi(context: Shared) -> JsonResponse[bytes]:
    """All routes, as OpenAPI describes them. Takes a while when it is made, so the loop does not wait for it."""
    return JsonResponse(_document(context.door.build.version), media_type="application/json")


def _options() -> Iterator[HTTPRouteHandler]:
    """What OPTIONS is told. Litestar would name the methods of the first handler of a path only."""
    methods: dict[str, set[str]] = defaultdict(lambda: {"OPTIONS"})
    for handler in ROUTES:
        for path in handler.paths:
            methods[path] |= handler.http_methods
    for path, allowed in methods.items():
        yield _options_of(path, allowed_methods(allowed, path))


def _options_of(path: str, allowed: str) -> HTTPRouteHandler:
    @route(path, http_method=HttpMethod.OPTIONS, status_code=204, opt={**LENIENT, SHOWS_INTERNAL: True})
    async def options() -> Response[None]:
        return Response(None, headers={"allow": allowed})

    return options


@cache
def _document(version: str) -> bytes:
    return encode(describe(ROUTES, version=version))


@get("/docs")
async def docs() -> JsonResponse[bytes]:
    """A page to read about the routes and to try them."""
    return _page(DOCS_PAGE)


@get("/")
async def first_page() -> JsonResponse[bytes]:
    """A page with links to what a person may look for."""
    return _page(FIRST_PAGE)


def _page(content: bytes) -> JsonResponse[bytes]:
    headers = {"content-security-policy": "default-src 'self' 'unsafe-inline'"}
    return JsonResponse(content, media_type="text/html", headers=headers)


def refuse(request: Request[Any, Any, Any], error: Exception) -> JsonResponse[ErrorBody]:
    """What a client is told when a route raised something."""
    told = understood(error, request.scope)
    headers = headers_of(told)
    if is_below(request.scope["path"]):
        refused = refusal(told)
        return SchemaResponse(refused, status_code=refused.status, headers=headers)
    body = body_of(told)
    return JsonResponse(body, status_code=body.status, headers=headers, media_type="application/json")
