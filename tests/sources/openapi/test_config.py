"""Settings as objects, and as the mappings of a configuration file."""

from __future__ import annotations

from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.sources.openapi import HTTPAuth, HTTPLimits, HTTPRetry, HTTPServiceConfig


def config(**settings: Any) -> HTTPServiceConfig:
    return HTTPServiceConfig(namespace="api", **settings)


def test_settings_may_be_mappings() -> None:
    made = config(auth={"type": "bearer", "token": "t"}, retry={"attempts": 5}, limits={"redirects": 1})
    assert made.auth == HTTPAuth(type="bearer", token="t")
    assert (made.retry, made.limits) == (HTTPRetry(attempts=5), HTTPLimits(redirects=1))


def test_credentials_may_be_by_scheme() -> None:
    auth = {"one": {"type": "api_key", "token": "k"}, "two": HTTPAuth(type="basic", username="u", password="p")}
    assert config(auth=auth).auth == {"one": HTTPAuth(type="api_key", token="k"), "two": auth["two"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"auth": {"type": "magic", "token": "very-secret"}},
        {"auth": {"type": "bearer", "tokn": "very-secret"}},
        {"auth": {"one": "very-secret"}},
        {"retry": {"attempts": "many"}},
    ],
)
def test_a_wrong_setting_is_one_clear_error_without_secrets(settings: Any) -> None:
    with pytest.raises(CallError) as caught:
        config(**settings)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "very-secret" not in str(caught.value)
