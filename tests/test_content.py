from typing import Any

import msgspec
import pytest
from hypothesis import given

from operations import MCPContentBlockSchema
from operations.content import (
    MCPAnnotations,
    MCPAudioContent,
    MCPEmbeddedResource,
    MCPImageContent,
    MCPResourceLink,
    MCPTextContent,
    content_block,
    is_content_block,
)
from tests.strategies import content_blocks

EXAMPLES: dict[type, dict[str, Any]] = {
    MCPTextContent: {"type": "text", "text": "hello"},
    MCPImageContent: {"type": "image", "data": "AA==", "mimeType": "image/png"},
    MCPAudioContent: {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
    MCPEmbeddedResource: {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "t"}},
    MCPResourceLink: {"type": "resource_link", "uri": "a://b", "name": "n", "description": "d", "mimeType": "m/t"},
}


@pytest.mark.parametrize(("kind", "block"), EXAMPLES.items())
def test_each_kind_of_block_is_read_and_written_back(kind: type, block: dict[str, Any]) -> None:
    read = content_block(block)
    assert type(read) is kind
    assert read.type == block["type"]
    assert read.to_dict() == block
    assert MCPContentBlockSchema.check(block)


@given(content_blocks)
def test_nothing_of_a_known_block_is_lost(block: dict[str, Any]) -> None:
    assert content_block(block).to_dict() == block
    assert is_content_block(block)


def test_annotations_are_typed_and_unknown_fields_kept_in_extra() -> None:
    block = content_block(
        {
            "type": "text",
            "text": "x",
            "annotations": {"audience": ["user"], "priority": 1, "lastModified": "2025-01-01", "mood": "good"},
            "_meta": {"a": 1},
        }
    )
    assert block.annotations == MCPAnnotations(
        audience=["user"], priority=1.0, last_modified="2025-01-01", extra={"mood": "good"}
    )
    assert block.extra == {"_meta": {"a": 1}}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "hologram", "depth": 3},
        {"type": "text"},
        {"type": "text", "text": 5},
        {},
        {"type": ["text"], "text": "x"},
    ],
)
def test_a_block_we_cannot_read_is_kept_as_json_text(block: dict[str, Any]) -> None:
    read = content_block(block)
    assert isinstance(read, MCPTextContent)
    assert msgspec.json.decode(read.text) == block


def test_a_block_of_an_unknown_type_is_a_block_and_a_malformed_known_one_is_not() -> None:
    assert is_content_block({"type": "hologram"})
    assert not is_content_block({"type": "image", "data": "AA=="})
    assert not is_content_block({"text": "no type"})
    assert not is_content_block("text")
