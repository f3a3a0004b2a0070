"""`[[interceptors]]` of a configuration: valid and invalid tables, and the interceptors made from them."""

from __future__ import annotations

import typing
from inspect import Parameter, signature
from pathlib import Path

import msgspec
import pytest

from operations import ErrorCode, from_schema
from operations.config import config_schema, describe_config, open_workspace
from operations.config.interceptor_settings import AnyInterceptor
from operations.config.interceptors import _KINDS, _MAKERS, make_interceptors
from operations.interceptors import ApprovalRequest, Only
from operations.testing import error_of
from tests.config.files import load, problems, write

EVERY = """
    [sources.shop]
    python = "shop.py"

    [[interceptors]]
    use = "log"
    level = "DEBUG"
    slow = 0.5

    [[interceptors]]
    use = "redact"
    patterns = ['sk-\\\\w+']

    [[interceptors]]
    use = "approval"
    operations = ["shop.buy"]

    [[interceptors]]
    use = "rate-limit"
    rate = "${RATE:-5}"
    per = 60
    types = ["query", "mutation"]

    [[interceptors]]
    use = "concurrency-limit"
    limit = 4
    queue = 10
    by = ["identity", "operation"]

    [[interceptors]]
    use = "circuit-breaker"
    operations = ["shop.*"]
    exclude = ["shop.buy"]

    [[interceptors]]
    use = "retry"

    [[interceptors]]
    use = "cache"
    ttl = 60
    share = "rights"

    [[interceptors]]
    use = "response-limit"
    max_bytes = 1_000_000
"""
SHOP = """
from operations import operation

@operation("shop.quote", type="query")
async def quote(item: str) -> dict[str, str]:
    return {"item": item, "password": "hunter2"}

@operation("shop.buy")
async def buy(item: str) -> str:
    return item
"""


def test_every_interceptor_can_be_configured(tmp_path: Path) -> None:
    config = load(tmp_path, EVERY)
    assert [settings.use for settings in config.interceptors] == [
        *("log", "redact", "approval", "rate-limit", "concurrency-limit", "circuit-breaker", "retry", "cache"),
        "response-limit",
    ]
    assert config.interceptors[3].rate == 5.0
    made = make_interceptors(config.interceptors)
    assert all(isinstance(each, Only) for each in made)
    assert len(describe_config(config)["interceptors"]) == 9


def test_every_kind_is_in_the_published_schema() -> None:
    schema = from_schema(config_schema())
    assert schema.check({"interceptors": [{"use": "cache", "ttl": 3, "operations": ["a.*"]}]})
    assert schema.check({"interceptors": [{"use": "rate-limit", "rate": "${RATE}"}]})
    assert not schema.check({"interceptors": [{"use": "cache"}]})
    assert not schema.check({"interceptors": [{"use": "cash", "ttl": 3}]})
    assert len(typing.get_args(AnyInterceptor)) == 9


def test_settings_without_a_value_are_those_of_the_interceptor() -> None:
    """The defaults of the file and of Python are the same."""
    for use, maker in _MAKERS.items():
        parameters = signature(maker).parameters
        for field in msgspec.structs.fields(_KINDS[use]):
            if field.name in parameters and (use, field.name) != ("redact", "fields"):
                default = parameters[field.name].default
                given = None if default is Parameter.empty else default
                assert (None if field.default is msgspec.NODEFAULT else field.default) == given, (use, field.name)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('use = "rate-limt"', "unknown interceptor; did you mean rate-limit"),
        ("rate = 5", "missing use"),
        ('use = "rate-limit"', "missing required key rate"),
        ('use = "rate-limit"\nrate = 0', "expected a number > 0"),
        ('use = "rate-limit"\nrate = 1\nburts = 3', "unknown key; did you mean burst"),
        ('use = "cache"\nttl = 3\nshare = "all"', "expected one of identity, rights, everyone"),
        ('use = "redact"\npatterns = ["("]', "invalid pattern"),
        ('use = "retry"\nstatuses = ["x"]', "expected an integer"),
    ],
)
def test_a_problem_names_its_line(tmp_path: Path, table: str, problem: str) -> None:
    found = problems(write(tmp_path, f"[[interceptors]]\n{table}\n"))
    assert len(found) == 1
    assert problem in found[0]


def test_a_limit_whose_variable_is_not_set_is_a_problem_of_the_file(tmp_path: Path) -> None:
    found = problems(write(tmp_path, '[[interceptors]]\nuse = "rate-limit"\nrate = "${NO_SUCH_RATE}"\n'))
    assert "NO_SUCH_RATE" in found[0]


async def test_a_workspace_has_the_interceptors_of_its_file(tmp_path: Path) -> None:
    write(tmp_path, SHOP, "shop.py")
    asked: list[str] = []

    async def ask(request: ApprovalRequest) -> bool:
        asked.append(request.spec.id)
        return True

    async with open_workspace(load(tmp_path, EVERY), ask=ask) as workspace:
        registry = workspace.registry
        first = await registry.execute("shop.quote", {"item": "tea"})
        assert first.data == {"item": "tea", "password": "[redacted]"}
        assert await registry.execute("shop.quote", {"item": "tea"}) == first
        for _ in range(3):
            await registry.execute("shop.buy", {"item": "tea"})
        assert asked == ["shop.buy"] * 3
        error = await error_of(registry.execute("shop.buy", {"item": "tea"}))
        assert error.details["reason"] == "RATE_LIMITED"


async def test_without_anybody_to_ask_calls_that_need_approval_are_refused(tmp_path: Path) -> None:
    write(tmp_path, SHOP, "shop.py")
    async with open_workspace(load(tmp_path, EVERY)) as workspace:
        error = await error_of(workspace.registry.execute("shop.buy", {"item": "tea"}))
    assert error.code is ErrorCode.ACCESS_DENIED
