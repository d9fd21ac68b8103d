"""Short names of the types of ZeroMQ's sockets."""

from __future__ import annotations

from typing import TypeAlias

import zmq

Socket: TypeAlias = zmq.Socket[bytes]
Context: TypeAlias = zmq.Context[Socket]
