"""How our clients use gRPC."""

from __future__ import annotations

from typing import Final

from dafka_core.flight.grpc_workarounds import LOST_MS

CONNECT_TIMEOUT_MS: Final = 5_000
"""How long one attempt to connect may take; a store that is there answers at once."""

GRPC_OPTIONS: Final = [
    ("grpc.enable_http_proxy", 0),  # stores are contacted directly, as nodes of the mesh are
    # Whole blocks in few frames, and room for two of them: measured best on one machine.
    ("grpc.http2.max_frame_size", 16_777_215),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Not for its pings, the first of which is 24 days away: what was sent to a host that has
    # vanished breaks the connection after the timeout (TCP_USER_TIMEOUT).
    ("grpc.keepalive_time_ms", (1 << 31) - 2),
    ("grpc.keepalive_timeout_ms", LOST_MS),
]
