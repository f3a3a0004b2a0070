import subprocess
import sys

import operations

OPTIONAL = [
    "pydantic",
    "httpx",
    "httpx2",
    "pyreqwest",
    "mcp",
    "redis",
    "nats",
    "starlette",
    "yaml",
    "rich",
    "click",
    "jq",
]


def test_importing_operations_loads_nothing_optional() -> None:
    code = "import sys; from operations import *; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "operations.registry" in loaded
    assert [name for name in OPTIONAL if name in loaded] == []


def test_names_are_imported_on_first_use() -> None:
    code = (
        "import sys, operations\n"
        "print('msgspec' in sys.modules, 'OperationRegistry' in dir(operations), hasattr(operations, 'nothing'))\n"
        "print(operations.operation.__module__, operations.errors.CallError is operations.CallError)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "operations.function", "True"]


def test_the_barrel_is_sorted_and_complete() -> None:
    names = operations.__all__
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert [name for name in names if not hasattr(operations, name)] == []


def test_the_barrel_has_the_documented_names() -> None:
    documented = """
        OperationRegistry Operation OperationSpec OperationType AccessControl Identity OperationContext operation
        build_env subscribe CallError ErrorCode ResponseEnvelope LocalResponseMeta HTTPResponseMeta MCPResponseMeta
        MCPContentBlock local_envelope http_envelope mcp_envelope is_response_envelope unwrap ResponseEnvelopeSchema
        ResponseMetaSchema LocalResponseMetaSchema HTTPResponseMetaSchema MCPResponseMetaSchema MCPContentBlockSchema
        OperationSpecSchema Schema UNKNOWN from_schema from_type validate_or_throw collect_errors format_value_errors
    """
    assert set(documented.split()) <= set(operations.__all__)
