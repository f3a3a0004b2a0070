"""The Redis transport, on our own thin client over hiredis: `connect("redis://127.0.0.1:6379")`."""

from operations.pubsub.redis.transport import RedisTransport

connect = RedisTransport
"""Open the transport of a Redis URL, such as `redis://host:6379`."""

__all__ = ["RedisTransport", "connect"]
