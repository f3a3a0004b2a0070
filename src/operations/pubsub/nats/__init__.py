"""The NATS transport: calls between machines. Queue groups share the load, JetStream stores durable calls."""

from operations.pubsub.nats.transport import NatsTransport

connect = NatsTransport
"""Open the transport of a `nats://` or `tls://` URL."""

__all__ = ["NatsTransport", "connect"]
