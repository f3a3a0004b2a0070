"""The default HTTP client, on pyreqwest, and the workarounds for what pyreqwest cannot do.

- `client_pool` and `socket_abort`: pyreqwest cannot cancel a request that was sent. The pool gives a request a client
  that few others share, and the connections of a cancelled request are found by a mark on their sockets and shut down.
- `exit_guard`: pyreqwest's thread outlives the interpreter and would abort the process. It is held before the end.

They pay for themselves: a GET at concurrency 64 takes about 0.16 ms of CPU here and 0.9 ms on httpx2, which needs none
of them (`python -m bench.openapi`, the row "operations execute on httpx2").
"""

from operations.http.pyreqwest.client import PyreqwestClient

__all__ = ["PyreqwestClient"]
