"""The default HTTP client, on pyreqwest, with workarounds for its limitations.

- `client_pool` and `socket_abort`: pyreqwest cannot cancel a request that was sent. The pool gives a request a client
  that few others share; the connections of a cancelled request are found by a socket option and shut down.
- `exit_guard`: pyreqwest's thread outlives the interpreter and would abort the process. It is blocked before the end.

They are worth their cost: a GET at concurrency 64 takes about 0.16 ms of CPU here and 0.9 ms on httpx2, which needs
none of them (`python -m bench.openapi`, the row "operations execute on httpx2").
"""

from operations.http.pyreqwest.client import PyreqwestClient

__all__ = ["PyreqwestClient"]
