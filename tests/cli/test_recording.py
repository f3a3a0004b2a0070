from __future__ import annotations

import base64
import json

from tests.cli.driving import Project


def test_a_recorded_call_is_replayed_without_a_configuration(project: Project) -> None:
    done = project.run("call", "shop.quote", "item=tea", "--record", "calls.jsonl")
    assert done.code == 0
    project.run("call", "shop.fail", "--record", "calls.jsonl")
    recorded = (project.directory / "calls.jsonl").read_text()
    assert len(recorded.splitlines()) == 5
    (project.directory / "operations.toml").unlink()
    again = project.run("call", "shop.quote", "item=tea", "--replay", "calls.jsonl")
    assert again.code == 0
    assert json.loads(again.out) == json.loads(done.out)
    assert project.run("call", "shop.fail", "--replay", "calls.jsonl").code == 5


def test_a_call_that_was_not_recorded_names_the_nearest(project: Project) -> None:
    project.run("call", "shop.quote", "item=tea", "--record", "calls.jsonl")
    done = project.run("call", "shop.quote", "item=gold", "--replay", "calls.jsonl")
    assert done.code == 6
    assert '{"item":"tea"}' in done.err
    assert "hint: record the call with --record FILE" in done.err
    assert project.run("call", "shop.other", "--replay", "calls.jsonl").code == 3
    assert project.run("call", "shop.quote", "--replay", "nowhere.jsonl").code == 2
    assert project.run("call", "shop.quote", "item=tea", "--record", "no/such/folder").code == 2


def test_secrets_of_the_configuration_are_not_recorded_in_text_or_bytes(project: Project) -> None:
    """A server may return what it received, in any form."""
    project.write(
        "mirror.py",
        "from operations import operation\n\n"
        "@operation(id='mirror.show')\n"
        "async def show() -> list:\n"
        "    text = 'sent with s3cr3t/value-1 and s3cr3t%2Fvalue-1'\n"
        "    return [text, text.encode()]\n",
    )
    project.write(
        "operations.toml",
        "[sources.mirror]\npython = './mirror.py'\n"
        "[sources.api]\nurl = 'http://127.0.0.1:9/'\nheaders = {X-Key = 's3cr3t/value-1'}\n",
    )
    done = project.run("call", "mirror.show", "--record", "calls.jsonl")
    assert "s3cr3t/value-1" in done.out
    replayed = project.run("call", "mirror.show", "--replay", "calls.jsonl")
    assert replayed.data == [
        "sent with [redacted] and [redacted]",
        {"$bytes": base64.b64encode(b"sent with [redacted] and [redacted]").decode()},
    ]
