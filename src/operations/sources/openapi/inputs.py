"""Inputs: the parameters and body of an operation merged into one flat object, and where each property is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from operations.schema import Schema
from operations.schema.dialects.keywords import TYPES
from operations.schema.dialects.overlaps import kinds_of, kinds_overlap
from operations.sources.openapi.bodies import BodyPlan, Format
from operations.sources.openapi.documents import (
    DanglingReferenceError,
    DocNode,
    Documents,
    IdentifiedReferenceError,
)
from operations.sources.openapi.forms import first_type, styled_parameter
from operations.sources.openapi.media import essence, is_json, is_text, usable_media_types
from operations.sources.openapi.parameters import Parameter

_PLAIN_OBJECT = frozenset(
    {
        *("type", "properties", "required", "title", "description", "example", "examples", "default", "nullable"),
        *("additionalProperties", "externalDocs", "xml", "deprecated", "$schema", "$comment", "readOnly", "writeOnly"),
    }
)
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SCALARS = ("string", "integer", "number", "boolean", "file")
_MAX_DEPTH = 20
_MAX_INPUT_DEPTH = 12

Compile = Callable[[Any], Schema]
"""Function that makes a `Schema` from a JSON Schema in the document; the `Schema` is compiled on first use."""


class InputField(msgspec.Struct, frozen=True):
    """A parameter and the schema of its value."""

    parameter: Parameter
    schema: Any
    required: bool
    description: str


class InputPlan(msgspec.Struct, frozen=True):
    """The input schema of an operation, and where each property is sent."""

    document: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    """The parameters by input key."""
    body: BodyPlan | None


def plan_input(
    documents: Documents, compile: Compile, fields: Sequence[InputField], body: DocNode | None, notes: list[str]
) -> InputPlan:
    """Return a plan that merges parameters and body into one object.

    The keys of parameters with the same name get their location as a prefix.
    """
    parameters, properties, required = _plan_parameters(fields)
    plan = None
    if body is not None:
        planned = plan_body(documents, compile, body, frozenset(parameters), notes)
        plan = planned.plan
        properties |= {key: with_description(schema, planned.description) for key, schema in planned.properties.items()}
        required += planned.required
    document: dict[str, Any] = {"type": "object", "properties": properties}
    if plan is None or not plan.is_open:
        document["additionalProperties"] = False
    if required:
        document["required"] = required
    if plan is not None and (choices := _choices(plan)):
        document["anyOf"] = choices
    if plan is not None and not plan.required and (dependent := _dependent(plan)):
        document["dependencies"] = dependent  # the name that OpenAPI 3.0's dialect has for `dependentRequired`
    return InputPlan(document, parameters, plan)


def _choices(plan: BodyPlan) -> list[dict[str, Any]]:
    """Return alternatives for `anyOf`: the properties that each media type requires. Empty if none are needed."""
    if plan.members is None or not plan.required:
        return []
    further = [[name for name in kind.required if name not in plan.required_members] for kind in plan.formats]
    distinct = [names for index, names in enumerate(further) if names not in further[:index]]
    return [{"required": names} for names in distinct] if all(distinct) and len(distinct) > 1 else []


def _dependent(plan: BodyPlan) -> dict[str, list[str]]:
    """Return which other properties each property of a flattened body requires, if the body is optional.

    An input either has all required properties of the body, or no property of the body.
    """
    dependent = {}
    for key in plan.members or ():
        others = [name for name in plan.required_members if name != key]
        if others:
            dependent[key] = others
    return dependent


def _plan_parameters(fields: Sequence[InputField]) -> tuple[dict[str, Parameter], dict[str, Any], list[str]]:
    parameters: dict[str, Parameter] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    times = Counter(field.parameter.name for field in fields)
    for field in fields:
        name = field.parameter.name
        key = free_name(name if times[name] == 1 else f"{field.parameter.location}_{name}", parameters)
        parameters[key] = msgspec.structs.replace(field.parameter, key=key)
        properties[key] = with_description(field.schema, field.description)
        if field.required:
            required.append(key)
    return parameters, properties, required


def with_description(schema: Any, description: str) -> Any:
    """Return a schema with a description, unless it already has one."""
    if not description or not isinstance(schema, (Mapping, bool)) or schema is False:
        return schema
    if schema is True:
        return {"description": description}
    if "$ref" in schema:
        return {"allOf": [schema], "description": description}
    return schema if "description" in schema else {**schema, "description": description}


class PlannedBody(NamedTuple):
    """A body's plan and its part of the input schema."""

    plan: BodyPlan
    properties: Mapping[str, Any]
    required: Sequence[str]
    description: str = ""


class _Content(NamedTuple):
    """A media type of a body with its schema, and the properties of the schema if it can be flattened."""

    media_type: str
    media: DocNode
    schema: Any
    members: _Properties | None


class _Properties(msgspec.Struct):
    """The properties of a flattened object."""

    properties: dict[str, DocNode]
    required: list[str]
    read_only: frozenset[str] = frozenset()
    """Properties that the server alone sets."""
    is_open: bool = True
    """Whether the object may have other properties as well."""


def plan_body(
    documents: Documents, compile: Compile, body: DocNode, taken: frozenset[str], notes: list[str]
) -> PlannedBody:
    """Plan how an input contains a body; `taken` has the keys of parameters.

    The body is flattened if its schemas only describe properties of objects, none with the name of a parameter. The
    properties of all media types are merged; the properties in an input determine the media type that is sent.
    """
    declared = _declared_content(documents, body, notes)
    contents = [_content(documents, kind, declared[kind], notes) for kind in sorted(declared, key=_preference)]
    distinct = _distinct(contents)
    required = body.value.get("required") is True
    flat = all(content.members is not None for content in distinct)
    names = {name: name for content in distinct for name in (content.members.properties if content.members else ())}
    read_only = frozenset(name for content in distinct if content.members for name in content.members.read_only)
    flat = flat and not taken.intersection(names) and bool(names or read_only)
    key = free_name("body", taken)
    different = compile if len(distinct) > 1 else None
    formats = [_format(documents, content, different) for content in contents]
    files = any(not is_json(kind) and essence(kind) != _FORMS[0] for kind in declared)
    required_members = _required_by_all(distinct) if flat else []
    plan = BodyPlan(
        formats=formats,
        required=required,
        members=names if flat else None,
        key=key,
        takes_files=files,
        required_members=required_members,
        read_only=read_only - names.keys(),
        parameters=taken,
    )
    if flat:
        properties = _member_schemas(documents, distinct, contents, required_members)
        return PlannedBody(plan, properties, required_members if required else [])
    whole = _any_of([content.schema for content in distinct])
    return PlannedBody(plan, {key: whole}, [key] if required else [], body.text("description"))


def _declared_content(documents: Documents, body: DocNode, notes: list[str]) -> dict[str, DocNode]:
    """Return the content of a body by media type; by default, one binary media type without a schema."""
    declared = usable_media_types(body.get("content").items(), "body", notes)
    content = {kind: documents.follow_if_found(media) for kind, media in declared.items()}
    return content or {"application/octet-stream": DocNode(None, body.address)}


def _content(documents: Documents, kind: str, media: DocNode, notes: list[str]) -> _Content:
    schema = media.get("schema")
    if essence(kind) == _FORMS[1] and (schema.value is None or documents.declared_type(schema) in _SCALARS):
        explanation = "is missing" if schema.value is None else "is not an object, which a form requires"
        notes.append(f"the schema of {essence(kind)} {explanation}: any fields are accepted")
        return _Content(kind, media, {"type": "object"}, None)
    if is_json(kind) or essence(kind) in _FORMS:
        return _Content(kind, media, documents.schema(schema), _members_of(documents, schema, notes))
    raw = _raw_schema(documents, schema, kind)
    return _Content(kind, media, raw if is_text(kind) else _file_schema(raw), None)


def _distinct(contents: Sequence[_Content]) -> list[_Content]:
    """Return the contents that have different schemas: XML with the same schema as JSON, for example, counts once."""
    kept: dict[str, _Content] = {}
    for content in contents:
        own = content.media.get("schema").value
        bare = own is None and (content.members is not None or is_text(content.media_type))
        if not kept or not bare:
            kept.setdefault(repr(own), content)  # comparing each schema with all others would take quadratic time
    return list(kept.values())


def _format(documents: Documents, content: _Content, compile: Compile | None) -> Format:
    members = content.members
    multipart = essence(content.media_type).startswith("multipart/")
    return Format(
        media_type=content.media_type,
        encoding=_encoding(content.media),
        members=None if members is None else frozenset(members.properties),
        required=() if members is None else members.required,
        is_open=members is not None and members.is_open,
        hint=_hint(documents, members) if multipart and members is not None else None,
        schema=None if compile is None else compile(content.schema),
    )


def _member_schemas(
    documents: Documents, distinct: Sequence[_Content], contents: Sequence[_Content], required: Sequence[str]
) -> dict[str, Any]:
    """Return the schema of each property: its only schema, or `anyOf` the schemas of several media types."""
    found: dict[str, list[Any]] = {}
    multipart = any(essence(content.media_type) == _FORMS[1] for content in contents)
    only_forms = all(essence(content.media_type) in _FORMS for content in contents)
    for content in distinct:
        for name, node in content.members.properties.items() if content.members else ():
            schema = documents.schema(node)
            if only_forms and name in required:
                schema = _require_sent(schema, documents.declared_type(node), _encoding(content.media).get(name, {}))
            found.setdefault(name, []).append(_file_schema(schema) if multipart else schema)
    return {name: _any_of(schemas) for name, schemas in found.items()}


def _require_sent(schema: Any, kind: str | None, encoding: Mapping[str, Any]) -> Any:
    """Return a required form property's schema without null and empty values, which would not be sent."""
    if schema is True:
        return {"not": {"type": "null"}}
    if styled_parameter("", encoding) is None and (kind != "array" or is_json(first_type(encoding) or "")):
        return schema  # encoded as JSON
    return require_items(schema, kind)


def require_items(schema: Any, kind: str | None) -> Any:
    """Return the schema of a required value; it excludes an empty array or object, which would not be sent."""
    bound = {"array": "minItems", "object": "minProperties"}.get(kind or "")
    if bound is None or not isinstance(schema, Mapping):
        return schema
    if isinstance(schema.get(bound), int) and schema[bound] > 0:
        return schema
    return {"allOf": [schema], bound: 1} if "$ref" in schema else {**schema, bound: 1}


def _required_by_all(distinct: Sequence[_Content]) -> list[str]:
    """Return the properties that all contents require."""
    lists = [content.members.required for content in distinct if content.members is not None]
    return [name for name in lists[0] if all(name in other for other in lists[1:])]


def _any_of(schemas: Sequence[Any]) -> Any:
    different = list({repr(schema): schema for schema in schemas}.values())
    return different[0] if len(different) == 1 else {"anyOf": different}


def _raw_schema(documents: Documents, schema: DocNode, media_type: str) -> Any:
    """Return the schema of a body that is sent as text or bytes; text may be any scalar."""
    kind = documents.declared_type(schema)
    if kind == "string" or (kind in _SCALARS and essence(media_type).startswith("text/")):
        return documents.schema(schema)
    if essence(media_type).endswith(("/*", "yaml", "jsonl", "ndjson", "json-seq")):
        return documents.schema(schema)
    return {"type": "string", "contentMediaType": essence(media_type)}


def _file_schema(schema: Any) -> Any:
    """Return the schema of a property; that of a file also accepts an object with content, name and type."""
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return {**schema, "items": _file_schema(schema["items"])}
    if schema.get("format") not in ("binary", "byte") and "contentMediaType" not in schema:
        return schema
    text = {"type": "string"}
    named = {
        "type": "object",
        "properties": {"filename": text, "content": {"type": "string", "format": "binary"}, "contentType": text},
        "required": ["content"],
        "additionalProperties": False,
    }
    return {"anyOf": [schema, named]}


def _hint(documents: Documents, members: _Properties) -> dict[str, Any]:
    """Return a schema with the properties of a multipart body, their references resolved, to identify files."""
    properties = {}
    for name, node in members.properties.items():
        followed = documents.follow_if_found(node)
        shown = followed.value
        if isinstance(shown, Mapping) and shown.get("type") == "array":
            shown = {"type": "array", "items": documents.follow_if_found(followed.get("items")).value}
        properties[name] = shown
    return {"properties": properties}


def _members_of(documents: Documents, node: DocNode, notes: list[str]) -> _Properties | None:
    """Return a schema's properties, and required ones that it does not describe; None if it cannot be flattened."""
    members = _properties_of(documents, node, notes)
    if members is None:
        return None
    for name in members.required:
        if name not in members.properties:
            notes.append(f"required property {name!r} of the body is not described: any value is accepted")
            members.properties[name] = DocNode(True, node.address)
    return members


def _properties_of(documents: Documents, node: DocNode, notes: list[str], depth: int = 0) -> _Properties | None:
    """Return the properties of a schema, including those of its `allOf`; None if it cannot be flattened."""
    try:
        node = documents.follow(node)
    except IdentifiedReferenceError:
        return None
    except DanglingReferenceError as error:
        notes.append(f"the body's schema is ignored: {error}")
        return None
    schema = node.value
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if schema.get("additionalProperties") not in (None, False):
        return None
    members = _Properties({}, [])
    for _, part in node.get("allOf").items():
        inherited = _properties_of(documents, part, notes, depth + 1)
        if inherited is None:
            return None
        _add_properties(documents, members, inherited.properties)
        members.required += inherited.required
        members.read_only |= inherited.read_only
        members.is_open = members.is_open and inherited.is_open
    if any(key not in _PLAIN_OBJECT and key != "allOf" and not key.startswith("x-") for key in schema):
        return None
    if schema.get("type", "object") != "object":
        return None
    members.is_open = members.is_open and schema.get("additionalProperties") is None
    # Some documents have one `$ref` in place of all properties.
    _add_properties(documents, members, dict(documents.follow_if_found(node.get("properties")).items()))
    required = schema.get("required")
    members.required += [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return _without_read_only(documents, members)


def _add_properties(documents: Documents, members: _Properties, added: Mapping[str, DocNode]) -> None:
    """Add properties; a property that several parts of an `allOf` describe has to match all of them."""
    for name, node in added.items():
        known = members.properties.get(name)
        if known is not None and known.value != node.value:
            both = {"allOf": [documents.schema(known), documents.schema(node)]}
            node = DocNode(both, documents.root.address)
        members.properties[name] = node


def _without_read_only(documents: Documents, members: _Properties) -> _Properties:
    """Return the properties that are not read-only; the names of the others are in `read_only`."""
    shown = {name: node for name, node in members.properties.items() if not _is_read_only(documents, node)}
    read_only = members.read_only | (members.properties.keys() - shown.keys())
    required = [name for name in dict.fromkeys(members.required) if name not in read_only]
    return _Properties(shown, required, read_only, members.is_open)


def _is_read_only(documents: Documents, node: DocNode, depth: int = 0) -> bool:
    """Whether a property is read-only, by its own schema, its `$ref` or its `allOf`."""
    if not isinstance(node.value, Mapping) or depth > _MAX_DEPTH:
        return False
    if node.value.get("readOnly") is True:
        return True
    parts: Iterator[DocNode] = (part for _, part in node.get("allOf").items())
    if any(_is_read_only(documents, part, depth + 1) for part in parts):
        return True
    target = documents.follow_if_found(node)
    return target is not node and _is_read_only(documents, target, depth + 1)


def _encoding(media: DocNode) -> Mapping[str, Mapping[str, Any]]:
    declared = media.get("encoding").value
    if not isinstance(declared, Mapping):
        return {}
    return {name: value for name, value in declared.items() if isinstance(value, Mapping)}


def _preference(media_type: str) -> tuple[bool, bool, bool, bool]:
    kind = essence(media_type)
    return not is_json(kind), kind != _FORMS[0], kind != _FORMS[1], not is_text(kind)


def free_name(name: str, taken: Any) -> str:
    """Return the name, with underscores appended until it is not in `taken`."""
    while name in taken:
        name = f"{name}_"
    return name


def explain_impossible(documents: Documents, input_schema: Any) -> str | None:
    """Return where and why no input can be valid; None if a valid input may exist.

    Only two reasons are found: a required property has conflicting types, or requires itself.
    """
    if not isinstance(input_schema, Mapping):
        return None
    return _explain(documents, DocNode(input_schema, documents.root.address), "", ())


def _explain(documents: Documents, node: DocNode, where: str, ancestors: tuple[int, ...]) -> str | None:
    parts = list(_parts(documents, node, 0))
    if len(ancestors) > _MAX_INPUT_DEPTH:
        return None
    if any(id(part.value) in ancestors for part in parts):
        return f"{where or '/'} requires itself: no finite value is valid"
    kinds = [found for part in parts if (found := kinds_of(part.value)) is not None and found <= TYPES]
    if any(not kinds_overlap(first, second) for first in kinds for second in kinds):
        explanation = " and ".join(sorted({"/".join(sorted(kind)) for kind in kinds}))
        return f"{where or '/'} has conflicting types: {explanation}"
    ancestors = (*ancestors, *(id(part.value) for part in parts))
    for part in parts:
        required = part.value.get("required")
        for name in required if isinstance(required, list) and not _may_be_null(part) else ():
            member = part.get("properties", name) if isinstance(name, str) else None
            if member is not None and isinstance(member.value, Mapping) and member.value.get("readOnly") is not True:
                reason = _explain(documents, member, f"{where}/{name}", ancestors)
                if reason is not None:
                    return reason
    return None


def _parts(documents: Documents, node: DocNode, depth: int) -> Iterator[DocNode]:
    """Yield a schema and the parts of its `allOf`, except nullable parts."""
    try:
        node = documents.follow(node)
    except DanglingReferenceError:
        return
    if not isinstance(node.value, Mapping) or depth > _MAX_INPUT_DEPTH or _may_be_null(node):
        return
    yield node
    for _, part in node.get("allOf").items():
        yield from _parts(documents, part, depth + 1)


def _may_be_null(node: DocNode) -> bool:
    kind = node.value.get("type")
    nullable = node.value.get("nullable") is True or node.value.get("x-nullable") is True
    return nullable or (isinstance(kind, list) and "null" in kind)
