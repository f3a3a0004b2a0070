"""Requests that are refused cost little: suggestions for unknown paths, and malformed multipart bodies."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from operations import Operation, OperationRegistry
from operations.serving import app
from operations.spec import OperationSpec, OperationType
from tests.serving.asgi_client import post, request
from tests.serving.shop import Shop


async def test_a_burst_of_unknown_paths_compares_few_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, 20 requests at the same time compared 2,000 ids each, which took up to a second."""
    compared: list[int] = []
    original = difflib.get_close_matches

    def count(word: str, possibilities: Sequence[str], *args: Any, **options: Any) -> list[str]:
        compared.append(len(possibilities))
        return original(word, possibilities, *args, **options)

    monkeypatch.setattr(difflib, "get_close_matches", count)
    specs = [
        OperationSpec(name=f"operation_{number}", namespace="many", type=OperationType.QUERY) for number in range(3_000)
    ]
    served = app(OperationRegistry(Operation(spec=spec, handler=lambda *_: 1) for spec in specs), mcp=False)
    answers = await asyncio.gather(*(post(served, "/many/operation_x") for _ in range(30)))
    assert {answer.status for answer in answers} == {404}
    suggested = [answer for answer in answers if answer.json["details"]["nearest"]]
    assert 0 < len(suggested) == len(compared) <= 6
    assert max(compared) <= 200


async def test_malformed_multipart_bodies_write_nothing_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    served = app(Shop().registry, mcp=False)
    headers = {"content-type": "multipart/form-data; boundary=b"}
    with caplog.at_level(logging.WARNING):
        for body in (b"x", b"--b\r\nname", b"--b\r\n\x00: x\r\n\r\n", b"--b\r\n" + b"x" * 100_000, b"--b\r\na: b\nc"):
            answer = await request(served, "POST", "/shop/digest", body=body, headers=headers)
            assert answer.status == 400
    assert caplog.records == []
