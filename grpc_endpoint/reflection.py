"""What the endpoint serves, as grpcurl and its like ask it (grpc.reflection.v1 and v1alpha): the names of its
services, and the files that define them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from grpc_endpoint import health_pb2, messaging_pb2, reflection_pb2
from grpc_endpoint.reflection_pb2 import (
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)
from grpc_endpoint.rpc import GrpcStatus
from grpc_endpoint.status import StreamRefusedError

_PACKAGE: Final = reflection_pb2.DESCRIPTOR.package
_ALPHA: Final = "grpc.reflection.v1alpha"
REFLECTION_SERVICES: Final = (f"{_PACKAGE}.ServerReflection", f"{_ALPHA}.ServerReflection")
REQUEST_BYTES_MAX: Final = 4_096
"""Names are short, and an answer repeats its request."""


class Reflection:
    """Knows the files of the endpoint's services and what they import, no others of the process."""

    def __init__(self) -> None:
        own = (messaging_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
        files = {each.name: each.serialized_pb for each in _imported_first(own)}
        alpha = _alpha()
        files[alpha.name] = alpha.SerializeToString()
        self._pool = DescriptorPool()
        for data in files.values():
            self._pool.AddSerializedFile(data)
        found = [self._pool.FindFileByName(name) for name in files]
        names = sorted(each.full_name for file in found for each in file.services_by_name.values())
        self._services = ListServiceResponse(service=[ServiceResponse(name=name) for name in names])

    async def info(
        self, requests: AsyncIterator[ServerReflectionRequest]
    ) -> AsyncIterator[ServerReflectionResponse]:
        """An answer to each request. Raises StreamRefusedError."""
        async for request in requests:
            yield self.answer(request)
            # An answer is many times its request. Once the connection has tried to write it, the next one
            # waits for a caller who does not read.
            await asyncio.sleep(0)

    def answer(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        """An unknown name is an error within the answer. Raises StreamRefusedError."""
        if request.ByteSize() > REQUEST_BYTES_MAX:
            raise StreamRefusedError(f"a request of more than {REQUEST_BYTES_MAX} bytes")
        response = ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except KeyError as error:
            _fail(response, GrpcStatus.NOT_FOUND, f"there is no {error.args[0]}")
        return response

    def _fill(self, response: ServerReflectionResponse, request: ServerReflectionRequest) -> None:
        """Raises KeyError."""
        match request.WhichOneof("message_request"):
            case "list_services":
                response.list_services_response.CopyFrom(self._services)
            case "file_by_filename":
                self._add_files(response, self._pool.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                self._add_files(response, self._file_with(request.file_containing_symbol))
            case "file_containing_extension" | "all_extension_numbers_of_type":
                _fail(response, GrpcStatus.UNIMPLEMENTED, "no message here has extensions")
            case _:
                _fail(response, GrpcStatus.INVALID_ARGUMENT, "the request asks for nothing that is known")

    def _file_with(self, symbol: str) -> FileDescriptor:
        """Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # it does not look for methods
            return self._pool.FindMethodByName(symbol).containing_service.file

    def _add_files(self, response: ServerReflectionResponse, file: FileDescriptor) -> None:
        """The file itself first, as callers want it."""
        files = reversed(tuple(_imported_first((file,))))
        response.file_descriptor_response.file_descriptor_proto.extend(each.serialized_pb for each in files)


def _fail(response: ServerReflectionResponse, status: GrpcStatus, message: str) -> None:
    response.error_response.error_code = status
    response.error_response.error_message = message


def _imported_first(files: Iterable[FileDescriptor]) -> Iterator[FileDescriptor]:
    """With what they import, before them."""
    for file in files:
        yield from _imported_first(file.dependencies)
        yield file


def _alpha() -> FileDescriptorProto:
    """The interface under its older name, which grpcurl asked for before 1.9."""
    text = text_format.MessageToString(
        FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb)
    )
    alpha = text_format.Parse(text.replace(_PACKAGE, _ALPHA), FileDescriptorProto())
    alpha.name = alpha.name.replace("reflection", "reflection_v1alpha")
    return alpha
