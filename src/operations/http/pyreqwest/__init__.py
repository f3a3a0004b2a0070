"""The default HTTP client, on pyreqwest, with workarounds for its limitations.

- `client_pool` and `socket_abort`: pyreqwest cannot cancel a request that was sent. So `socket_abort` shuts down all
  connections of the request's client, which it finds by a socket option. In the pool, few requests share a client.
- `exit_guard`: pyreqwest's thread outlives the interpreter and would abort the process. The thread is blocked before
  the interpreter ends.

pyreqwest is worth these workarounds: at concurrency 64, a GET takes about 0.16 ms of CPU with it and 0.9 ms with
httpx2, which needs no workarounds (`python -m bench.openapi`, the row "operations execute on httpx2").
"""

from operations.http.pyreqwest.client import PyreqwestClient

__all__ = ["PyreqwestClient"]
