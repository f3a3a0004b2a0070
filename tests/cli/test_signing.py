"""Signed identities from the configuration: workers that check, callers that sign, over Redis and NATS."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from operations.calls.signing_secrets import SigningSecret
from tests.cli.driving import Project
from tests.cli.test_processes import running
from tests.nats_server import NatsServer
from tests.redis_servers import Server

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "signed-identities.md"
# Tests set the variables in the environment instead of files.
BLOCK = r'^```toml title="(?:worker|caller).toml"\nenv_file = "\w+.env"\n(.*?)^```$'
WORKERS, CALLERS = re.findall(BLOCK, GUIDE.read_text(), re.M | re.S)
ADDRESS = "redis://127.0.0.1:6379"
BANK = """
from collections.abc import AsyncIterator
from operations import AccessControl, OperationContext, operation

may_read = AccessControl(required_scopes=["read"])

@operation(id="account.read", type="query", access_control=may_read)
async def read(context: OperationContext, times: int = 1) -> str:
    return f"the account of {context.identity.id}" * times

@operation(id="account.follow", access_control=may_read)
async def follow(context: OperationContext) -> AsyncIterator[str]:
    yield context.identity.id
"""


@pytest.fixture(scope="module", params=["redis", "nats"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server."""
    server = Server("redis").start() if request.param == "redis" else NatsServer().start()
    yield server.url
    server.kill()


class Bank:
    """A worker's project and a caller's, as the guide writes them, and tokens for the caller."""

    def __init__(self, directory: Path, url: str) -> None:
        self.worker, self.caller = Project(directory / "worker"), Project(directory / "caller")
        self.worker.write("operations.toml", WORKERS.replace(ADDRESS, url))
        self.worker.write("bank/accounts.py", BANK)
        self.caller.write("operations.toml", CALLERS.replace(ADDRESS, url))
        self.secret, self.token_key = secrets.token_hex(32), secrets.token_hex(16)
        self.worker.environment |= {"SIGNING_SECRET": self.secret, "TOKEN_KEY": self.token_key}
        self.issue(scope="read")

    def issue(self, *, scope: str, lasts: float = 600) -> None:
        """Give the caller a token and its key."""
        claims = {"sub": "ada", "scope": scope, "aud": "bank", "exp": time.time() + lasts}
        token = jwt.encode(claims, self.token_key, "HS256")
        key = SigningSecret(bytes.fromhex(self.secret)).session(token).key.hex()
        self.caller.environment |= {"BANK_TOKEN": token, "BANK_KEY": key}


@pytest.fixture
def bank(tmp_path: Path, url: str) -> Bank:
    return Bank(tmp_path, url)


def test_a_worker_identifies_the_caller_by_the_signature(bank: Bank) -> None:
    with running(bank.worker, "worker", said="serving 2 operations"):
        called = bank.caller.run("call", "account.read", "--url", "bus")
        assert called.code == 0, called.err
        assert called.data == "the account of ada"
        assert bank.caller.run("sub", "account.follow", "--url", "bus").lines == ["ada"]
        mapped = bank.caller.run("map", "account.read", "--url", "bus", stdin='{"times":1}\n{"times":2}\n')
        assert mapped.lines == ["the account of ada", "the account of ada" * 2]
        assert "account.read\tquery\tbus" in bank.caller.run("ls", "--url", "bus").out
        # The workers' own configuration has no token, so that nothing is signed.
        denied = bank.worker.run("call", "account.read", "--url", "bus")
        assert denied.code == 4
        assert "the request is not signed" in denied.err
        # A holder of the secret needs no key for a token.
        config = bank.worker.directory / "operations.toml"
        config.write_text(config.read_text().replace("required = true", 'token = "${BANK_TOKEN}"'))
        env = {"BANK_TOKEN": bank.caller.environment["BANK_TOKEN"]}
        assert bank.worker.run("call", "account.read", "--url", "bus", env=env).data == "the account of ada"


def test_invalid_signatures_are_denied_without_showing_keys(bank: Bank, url: str) -> None:
    with running(bank.worker, "worker", said="serving 2 operations"):
        unsigned = bank.caller.run("call", "account.read", "--url", url)
        assert unsigned.code == 4
        assert "the request is not signed" in unsigned.err
        assert "hint: pass --url NAME, with a name in [transports] whose signing table has a token" in unsigned.err
        assert "no sources; pass --url bus" in bank.caller.run("call", "account.read").err
        key = bank.caller.environment["BANK_KEY"]
        forged = "0" * len(key)
        done = bank.caller.run("call", "account.read", "--url", "bus", "--debug", "--json", env={"BANK_KEY": forged})
        assert done.code == 4
        assert "the signature does not match the request" in done.err
        assert forged not in done.err
        assert "use the key that was issued with the token" in done.err
        bank.issue(scope="write")
        done = bank.caller.run("call", "account.read", "--url", "bus", "--debug")
        assert done.code == 4
        assert "missing scope read" in done.err
        bank.issue(scope="read", lasts=-60)
        expired = bank.caller.run("call", "account.read", "--url", "bus").err
        assert "expired" in expired
        assert "from the issuer" in expired


def test_a_worker_accepts_the_previous_and_the_next_secret(bank: Bank) -> None:
    config, new = bank.worker.directory / "operations.toml", secrets.token_hex(32)
    accepted = config.read_text().replace("required = true", 'required = true\naccepted_secrets = ["${OTHER_SECRET}"]')
    config.write_text(accepted)
    bank.worker.environment |= {"OTHER_SECRET": new}
    shown = bank.worker.run("config", "show").out
    assert new not in shown
    assert "${OTHER_SECRET}" in shown
    with running(bank.worker, "worker", said="serving 2 operations"):
        assert bank.caller.run("call", "account.read", "--url", "bus").data == "the account of ada"
        bank.secret = new
        bank.issue(scope="read")
        assert bank.caller.run("call", "account.read", "--url", "bus").data == "the account of ada"
    bank.worker.environment["OTHER_SECRET"] = secrets.token_hex(32)
    with running(bank.worker, "worker", said="serving 2 operations"):
        assert "does not match" in bank.caller.run("call", "account.read", "--url", "bus").err


def test_the_configuration_is_shown_without_the_keys(tmp_path: Path) -> None:
    bank = Bank(tmp_path, "nats://127.0.0.1:4222")
    for project, hidden in ((bank.worker, "SIGNING_SECRET TOKEN_KEY"), (bank.caller, "BANK_TOKEN BANK_KEY")):
        done = project.run("config", "show")
        assert done.code == 0
        for name in hidden.split():
            assert project.environment[name] not in done.out
            assert f"${{{name}}}" in done.out


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('secret = "short"', "signing.secret: expected at least 32 random bytes in hexadecimal"),
        (f'secret = "{"x" * 64}"', "signing.secret: expected at least 32 random bytes"),
        (
            f'secret = "{"ab" * 32}"\naccepted_secrets = ["ab"]',
            "signing.accepted_secrets: expected at least 32 random bytes",
        ),
        (f'token = "t"\nkey = "{"ab" * 32}"\naccepted_secrets = ["{"ab" * 32}"]', "accepted_secrets requires secret"),
        (
            f'token = "t"\nkey = "{"a" * 63}"',
            "5: transports.bus.signing.key: expected at least 32 random bytes",
        ),
        ('token = "t"', "set secret for a worker, or token and key for a caller"),
        (f'secret = "{"ab" * 32}"\njwt = {{ algorithms = ["HS256"] }}', "expected exactly one of key and key_file"),
        (f'secret = "{"ab" * 32}"\nrequierd = true', "requierd: unknown key; did you mean required?"),
    ],
)
def test_invalid_settings_are_reported_with_their_location(table: str, message: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", f'[transports.bus]\nurl = "nats://127.0.0.1"\n[transports.bus.signing]\n{table}\n')
    done = project.run("config", "show")
    assert done.code == 2
    assert message in done.err
    assert "abab" not in done.err


def test_a_hub_needs_no_signatures_and_a_worker_needs_the_secret(tmp_path: Path) -> None:
    bank = Bank(tmp_path, "ws://127.0.0.1:1/")
    assert "a hub authenticates callers itself" in bank.caller.run("call", "a.b", "--url", "bus").err
    bank = Bank(tmp_path, "nats://127.0.0.1:1")
    config = bank.caller.directory / "operations.toml"
    config.write_text(f'{config.read_text()}[sources.bank]\npython = "../worker/bank"\n')
    done = bank.caller.run("worker")
    assert done.code == 2
    assert "a worker needs the secret to check signatures" in done.err
