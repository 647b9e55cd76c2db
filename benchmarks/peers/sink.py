# SPDX-License-Identifier: Apache-2.0
"""A receiver of OTLP profiles: `python -m benchmarks.peers.sink`.

It prints a JSON line with its ports, {"grpc": PORT, "http": PORT}, then one for each request until its
standard input ends, with the times of the samples:
{"identified": [NANOSECONDS, ...], "other": [...]}. A sample is identified if a process or thread name comes
with it, and for each native frame a build ID.
"""

import concurrent.futures
import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as messages

SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"
MAX_MESSAGE = 64 << 20
NAMES = {"process.executable.name", "thread.name"}
BUILD_IDS = {
    "process.executable.build_id.gnu",
    "process.executable.build_id.go",
    "process.executable.build_id.htlhash",
}
FRAME_TYPE = "profile.frame.type"


class Reading:
    """One request, its dictionary at hand."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._dictionary = request.dictionary
        self._strings = request.dictionary.string_table
        self._known: dict[int, bool] = {}  # by number of the stack

    def _attributes(self, indices: Any) -> dict[str, str]:
        entries = [self._dictionary.attribute_table[index] for index in indices]
        return {self._strings[entry.key_strindex]: entry.value.string_value for entry in entries}

    def _has_build_ids(self, stack: int) -> bool:
        known = self._known.get(stack)
        if known is None:
            known = self._known[stack] = all(
                self._is_known(self._dictionary.location_table[index])
                for index in self._dictionary.stack_table[stack].location_indices
            )
        return known

    def _is_known(self, location: Any) -> bool:
        if self._attributes(location.attribute_indices).get(FRAME_TYPE) != "native":
            return True
        mapping = self._dictionary.mapping_table[location.mapping_index]
        return any(
            name in BUILD_IDS and value for name, value in self._attributes(mapping.attribute_indices).items()
        )

    def samples(self) -> dict[str, list[int]]:
        """Times of its samples, ns since 1970."""
        found: dict[str, list[int]] = {"identified": [], "other": []}
        for group in self._request.resource_profiles:
            named = any(
                entry.key in NAMES and entry.value.string_value for entry in group.resource.attributes
            )
            profiles = [profile for scope in group.scope_profiles for profile in scope.profiles]
            for profile in profiles:
                for sample in profile.samples:
                    attributes = self._attributes(sample.attribute_indices)
                    known = named or any(attributes.get(name) for name in NAMES)
                    known = known and self._has_build_ids(sample.stack_index)
                    times = list(sample.timestamps_unix_nano)
                    times = times or [profile.time_unix_nano] * sum(sample.values)
                    found["identified" if known else "other"] += times
        return found


def told(request: Any) -> None:
    """Prints the line of a request."""
    print(json.dumps(Reading(request).samples()), flush=True)


class HttpHandler(BaseHTTPRequestHandler):
    """OTLP over HTTP: https://opentelemetry.io/docs/specs/otlp/#otlphttp."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        told(messages.ExportProfilesServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def main() -> None:
    """Serves until standard input ends."""

    def export(request: Any, context: Any) -> Any:
        del context
        told(request)
        return messages.ExportProfilesServiceResponse()

    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(1), options=[("grpc.max_receive_message_length", MAX_MESSAGE)]
    )
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        messages.ExportProfilesServiceRequest.FromString,
        messages.ExportProfilesServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Export": handler})])
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = HTTPServer(("127.0.0.1", 0), HttpHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print(json.dumps({"grpc": grpc_port, "http": web.server_port}), flush=True)
    sys.stdin.read()
    web.shutdown()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
