"""Requests that prism judges invalid although they are valid: by whose fault, and what proves it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

TEXT = {"type": "string"}


class Rejection(msgspec.Struct, frozen=True):
    """A request that prism judged invalid, with what a proof may look at."""

    place: str
    """The operation, as `document: METHOD path (input)`."""
    cause: str
    """Location, code and message of prism's judgement."""
    kind: str = ""
    """Media type of the body."""
    body: bytes = b""
    schema: Any = True
    """The operation's input schema."""
    notes: Sequence[str] = ()
    """Diagnostics of the operation's description."""
    url: str = ""
    described: Any = None
    """The operation's description in a document of OpenAPI 3.0."""

    def property(self) -> Any:
        """Return the schema of the input property that the cause names; an empty one if it names none."""
        named = re.match(r"(?:path|query|header|cookie|body)\.([^\s.]+)", self.cause)
        properties = self.schema.get("properties", {}) if isinstance(self.schema, dict) else {}
        by_name = {name.lower(): schema for name, schema in properties.items()}  # prism writes names in lower case
        return self.target(by_name.get(named[1].lower(), {}) if named else {})

    def target(self, schema: Any) -> Any:
        """Return the schema that a reference leads to, alone or in an `allOf` of one."""
        while isinstance(schema, dict) and ("$ref" in schema or len(schema.get("allOf", ())) == 1):
            reference = str(schema.get("$ref", ""))
            schema = self.schema["$defs"].get(reference.removeprefix("#/$defs/")) if reference else schema["allOf"][0]
        return schema if isinstance(schema, dict) else {}

    def form_values(self) -> list[bytes]:
        """Return the values of the form field that the cause names, as they were sent."""
        named = re.match(r"body\.([^\s.]+)", self.cause)
        name = re.escape(named[1].encode() if named else b"?")
        if self.kind.startswith("multipart/"):
            return [part for part in self.body.split(b"\r\n--") if re.search(rb'name="' + name + rb'"', part)]
        return re.findall(rb"(?:^|&)" + name + rb"(?:%5B%5D)?=([^&]*)", self.body)


def _is_form(rejection: Rejection) -> bool:
    return rejection.kind.startswith(("multipart/", "application/x-www-form-urlencoded"))


def _is_form_of_text(rejection: Rejection) -> bool:
    declared = rejection.target(rejection.schema["properties"]["body"]) == TEXT
    return _is_form(rejection) and (declared or any("is not an object" in note for note in rejection.notes))


def _sent_items(rejection: Rejection) -> bool:
    return _is_form(rejection) and bool(rejection.form_values())


def _sent_json(rejection: Rejection) -> bool:
    values = rejection.form_values()
    return _is_form(rejection) and any(b"application/json" in each or each.startswith(b"%7B") for each in values)


def _is_number_or_text(rejection: Rejection) -> bool:
    schema = rejection.property()
    types = {rejection.target(branch).get("type") for branch in (*schema.get("oneOf", ()), *schema.get("anyOf", ()))}
    return "string" in types and bool(types & {"integer", "number", "boolean"})


def _has_object_branch(rejection: Rejection) -> bool:
    return bool(rejection.property().keys() & {"oneOf", "anyOf"})


def _has_object_items(rejection: Rejection) -> bool:
    return bool(rejection.property().get("type") == "array")


def _was_repaired(rejection: Rejection) -> bool:
    text = json.dumps(rejection.schema)
    return '"anyOf"' in text and '"oneOf"' not in text


def _is_in_enum(rejection: Rejection) -> bool:
    schema = rejection.property()
    enum = schema.get("enum") or (schema.get("items") or {}).get("enum") or ()
    values = [str(value) for value in enum if isinstance(value, str)]
    return any(re.search(rf"[=,]{re.escape(value)}(&|,|$)", rejection.url) for value in values)


def _sent_encoded(rejection: Rejection) -> bool:
    named = re.search(r"required property '(.+)'$", rejection.cause)
    name = re.escape(named[1]).replace("%N", "%[0-9]") if named else "?"
    return re.search(rf"[?&]{name}=[^&]", rejection.url, re.IGNORECASE) is not None


def _sent_deep_array(rejection: Rejection) -> bool:
    named = re.match(r"query\.(\S+) .* parameter (\S+)\.(\S+) must NOT", rejection.cause)
    if named is None:
        return False
    field = re.escape(f"{named[2]}%5B{named[3]}%5D")
    return re.search(field, rejection.url) is None or re.search(f"{field}%5B%5D=", rejection.url) is not None


def _required_beside_reference(rejection: Rejection) -> bool:
    named = re.search(r"required property '(.+)'$", rejection.cause)
    body = (rejection.described or {}).get("requestBody", {})
    schemas = [media.get("schema", {}) for media in body.get("content", {}).values()]
    return named is not None and any("$ref" in each and named[1] in each.get("required", ()) for each in schemas)


def _sent_empty(rejection: Rejection) -> bool:
    named = re.search(r"required property '(.+)'$", rejection.cause)
    return named is not None and re.search(rf"[?&]{re.escape(named[1])}=(&|$)", rejection.url) is not None


class Excuse(msgspec.Struct, frozen=True):
    """A reason why prism rejects a valid request, how such a rejection reads, and what else must hold."""

    whose: str
    """`prism`, `document`, or `input` where the generated input is at fault."""
    reason: str
    problem: str
    """Pattern of the cause."""
    proof: Callable[[Rejection], bool]

    def covers(self, rejection: Rejection) -> bool:
        """Whether it explains a rejection."""
        return re.search(self.problem, rejection.cause) is not None and self.proof(rejection)


EXCUSES = [
    Excuse(
        "prism",
        "it reads an array in a form as its last item",
        r"^body\.\S+ type: .* must be array$",
        _sent_items,
    ),
    Excuse(
        "prism",
        "it reads a JSON part of a form as a string",
        r"^body\.\S+ type: .* must be (array|object)$",
        _sent_json,
    ),
    Excuse(
        "input",
        "the generated text does not have the format, which is an annotation",
        r"^\S+ format: .* must match format",
        lambda rejection: True,
    ),
    Excuse(
        "input",
        "the generated text is not base64, which prism requires for the format `byte` by a pattern of its own",
        r'^\S+ pattern: .* must match pattern "\^\[\\w\\d\+\\/=\]\*\$"$',
        lambda rejection: '"byte"' in json.dumps(rejection.schema) or "base64" in json.dumps(rejection.schema),
    ),
    Excuse(
        "document",
        "it declares the header Content-Type, which OpenAPI ignores, with a value that its bodies do not have",
        r"415: Supported content types: ",
        lambda rejection: any(name.lower() == "content-type" for name in rejection.schema.get("properties", {})),
    ),
    Excuse(
        "document",
        "its oneOf requires members that it has no `properties` for",
        r"^body\S* oneOf: .* in oneOf$",
        lambda rejection: (
            ": POST /v2/load_balancers" in rejection.place or ": PUT /v2/load_balancers" in rejection.place
        ),
    ),
    Excuse(
        "document",
        "several of its operations have this URL and differ in the fragment",
        "",
        lambda rejection: re.search(r"\S#\S+ \(", rejection.place) is not None,
    ),
    Excuse(
        "prism",
        "it reads an exploded object by `properties` only, not by those of `oneOf`",
        r"^query\.\S+ oneOf",
        _has_object_branch,
    ),
    Excuse(
        "document",
        "it has an array of objects in a query or header, which OpenAPI does not define",
        r"^(query|header)\.\S+ type: .*\.N must be object$",
        _has_object_items,
    ),
    Excuse(
        "prism",
        "it takes a body that is null for none",
        r"required: Body parameter is required$",
        lambda rejection: rejection.body == b"null",
    ),
    Excuse(
        "prism",
        "it reads a body of text as a string",
        r"^body type: .* must be (boolean|integer|number)$",
        lambda rejection: rejection.kind.startswith("text/plain"),
    ),
    Excuse(
        "document",
        "it requires a member of a form that it does not describe",
        r"^body required: ",
        lambda rejection: _is_form(rejection) and any("is not described" in note for note in rejection.notes),
    ),
    Excuse(
        "prism",
        "a number in a path or query matches both a number and a string",
        r"^(path|query)\.\S+ oneOf: .* exactly one schema in oneOf$",
        _is_number_or_text,
    ),
    Excuse(
        "document",
        "it declares the header Accept, which OpenAPI ignores",
        r"^header\.accept enum: ",
        lambda rejection: True,
    ),
    Excuse(
        "document",
        "it declares the header Authorization, which OpenAPI ignores",
        r"^header required: .* required property 'authorization'$",
        lambda rejection: True,
    ),
    Excuse(
        "document",
        "its oneOf has no value that matches exactly one branch, and is read as anyOf",
        r"^body\S* oneOf: .* must match exactly one schema in oneOf$",
        _was_repaired,
    ),
    Excuse(
        "document",
        "it declares no media type for its body",
        r"^INVALID_CONTENT_TYPE: No supported content types, but request included a non-empty body$",
        lambda rejection: rejection.kind == "application/json",
    ),
    Excuse(
        "prism",
        "it does not parse XML",
        r"^body type: Request body must be (object|array)$",
        lambda rejection: "xml" in rejection.kind,
    ),
    Excuse(
        "document",
        "it has a query in a path, which OpenAPI forbids",
        r"^NO_PATH_MATCHED_ERROR: ",
        lambda rejection: re.search(r" /\S*\?\S+ \(", rejection.place) is not None,
    ),
    Excuse(
        "document",
        "its enum has numbers for a string, and is read as one of strings",
        r"^query\.\S+ enum: .* one of the allowed values: N(, N)*$",
        _is_in_enum,
    ),
    Excuse(
        "prism",
        "it takes an empty value in a query for none",
        r"^query required: ",
        _sent_empty,
    ),
    Excuse(
        "prism",
        "it reads text/json as a string",
        r"^body type: Request body must be (object|array)$",
        lambda rejection: rejection.kind.startswith("text/json") and rejection.body[:1] in (b"{", b"["),
    ),
    Excuse(
        "prism",
        "it reads an array in a deepObject by indexes, and an absent one as empty; OpenAPI defines neither",
        r"^query\.\S+ minItems: ",
        _sent_deep_array,
    ),
    Excuse(
        "document",
        "it has `required` beside `$ref`, which OpenAPI 3.0 ignores",
        r"^body required: ",
        _required_beside_reference,
    ),
    Excuse(
        "prism",
        "it reads a form whose schema is a string as an object",
        r"^body type: Request body must be string$",
        _is_form_of_text,
    ),
    Excuse(
        "document",
        "it declares the header Content-Type, which OpenAPI ignores, with another value than its only media type",
        r"^header\.content-type enum: ",
        lambda rejection: rejection.kind.partition(";")[0] in rejection.cause,
    ),
    Excuse(
        "prism",
        "it does not decode the names of a query",
        r"^query required: .*%Nb",
        _sent_encoded,
    ),
    Excuse(
        "input",
        "the generated text does not have the format, in any variant of the body",
        r"^body anyOf: ",
        lambda rejection: b'""' in rejection.body and '"format"' in json.dumps(rejection.schema),
    ),
    Excuse(
        "prism",
        "it forbids in a part of a multipart body what has to be escaped in a URL",
        r"^body\.\S+ None: Reserved characters used in request body$",
        lambda rejection: rejection.kind.startswith("multipart/") and bool(rejection.form_values()),
    ),
]
"""What is provably not a fault of the request: a pattern of prism's words is never enough where more can be checked."""


def excuse_of(rejection: Rejection) -> Excuse | None:
    """Return what explains a rejection; None if nothing does."""
    return next((excuse for excuse in EXCUSES if excuse.covers(rejection)), None)
