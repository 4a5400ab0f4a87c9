"""Reflection: its answers in process, and over a real connection by gRPC's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio

from grpc_endpoint.endpoint import SERVICE
from grpc_endpoint.health import HEALTH_SERVICE
from grpc_endpoint.reflection import REFLECTION_SERVICES, REQUEST_BYTES_MAX, Reflection
from grpc_endpoint.reflection_pb2 import ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse
from grpc_endpoint.rpc import GrpcStatus
from grpc_endpoint.status import StreamRefusedError
from tests.unit.grpc_endpoint.test_server import serving

LIST = ServerReflectionRequest(list_services="*")
SERVICES = sorted((SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES))


def pool_of(response: ServerReflectionResponse) -> tuple[str, DescriptorPool]:
    """The first file's name, and all files as a client has them, who knows none besides."""
    files = response.file_descriptor_response.file_descriptor_proto
    pool = DescriptorPool()
    for data in reversed(files):
        pool.AddSerializedFile(data)
    return FileDescriptorProto.FromString(files[0]).name, pool


def services(response: ServerReflectionResponse) -> list[str]:
    return [each.name for each in response.list_services_response.service]


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_and_all_its_messages_are_found_from_the_list(service: str) -> None:
    reflection = Reflection()
    assert service in services(reflection.answer(LIST))
    name, pool = pool_of(reflection.answer(ServerReflectionRequest(file_containing_symbol=service)))
    methods = pool.FindServiceByName(service).methods
    assert methods
    for each in methods:
        for symbol in (each.full_name, each.input_type.full_name, each.output_type.full_name):
            request = ServerReflectionRequest(file_containing_symbol=symbol)
            assert pool_of(reflection.answer(request))[0] == name
    by_name = reflection.answer(ServerReflectionRequest(file_by_filename=name))
    assert pool_of(by_name)[0] == name


def test_a_file_comes_first_and_with_what_it_imports() -> None:
    reflection = Reflection()
    response = reflection.answer(ServerReflectionRequest(host="h", file_containing_symbol=SERVICE))
    assert (response.valid_host, response.original_request.file_containing_symbol) == ("h", SERVICE)
    files = response.file_descriptor_response.file_descriptor_proto
    assert [FileDescriptorProto.FromString(each).package for each in files] == [
        "apache.rocketmq.v2",
        "google.protobuf",
        "google.protobuf",
    ]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ServerReflectionRequest(file_by_filename="other.proto"), GrpcStatus.NOT_FOUND),
        (ServerReflectionRequest(file_containing_symbol="a.b.C"), GrpcStatus.NOT_FOUND),
        (ServerReflectionRequest(file_containing_symbol="google.protobuf.Any"), GrpcStatus.NOT_FOUND),
        (ServerReflectionRequest(file_containing_symbol=""), GrpcStatus.NOT_FOUND),
        (ServerReflectionRequest(all_extension_numbers_of_type=SERVICE), GrpcStatus.UNIMPLEMENTED),
        (ServerReflectionRequest(file_containing_extension=ExtensionRequest()), GrpcStatus.UNIMPLEMENTED),
        (ServerReflectionRequest(), GrpcStatus.INVALID_ARGUMENT),
    ],
)
def test_what_is_not_there_is_an_error_in_the_answer(
    request_: ServerReflectionRequest, code: GrpcStatus
) -> None:
    response = Reflection().answer(request_)
    assert response.WhichOneof("message_response") == "error_response"
    assert response.error_response.error_code == code
    assert response.original_request == request_


def test_a_long_request_is_refused() -> None:
    with pytest.raises(StreamRefusedError):
        Reflection().answer(ServerReflectionRequest(file_containing_symbol="." * REQUEST_BYTES_MAX))


async def test_the_event_loop_runs_between_the_answers_of_a_stream() -> None:
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def requests() -> AsyncIterator[ServerReflectionRequest]:
        for _ in range(10):
            yield LIST

    turn()
    answers = [each async for each in Reflection().info(requests())]
    assert turns >= len(answers) == 10


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_a_stream_is_answered_one_request_after_the_other_without_an_account(service: str) -> None:
    write, read = ServerReflectionRequest.SerializeToString, ServerReflectionResponse.FromString
    wanted = ServerReflectionRequest(file_containing_symbol=SERVICE)

    async def requests() -> AsyncIterator[ServerReflectionRequest]:
        yield LIST
        for _ in range(200):
            yield wanted

    async with (
        serving(needs_proof=True) as (_, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        info = channel.stream_stream(f"/{service}/ServerReflectionInfo", write, read)
        first, *rest = [each async for each in info(requests(), timeout=20)]
        assert services(first) == SERVICES
        assert [each.original_request for each in rest] == [wanted] * 200
        refused = info(timeout=20)
        await refused.write(ServerReflectionRequest(host="x" * REQUEST_BYTES_MAX))
        assert await refused.code() == grpc.StatusCode.INVALID_ARGUMENT
