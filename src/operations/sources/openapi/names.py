"""Names of operations: from the document's ids, or made of method and path; the same document, the same names."""

from __future__ import annotations

import re
from typing import Any

from operations.spec import map_source_name


class Names:
    """Gives each operation of a document a name of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, operation_id: object, method: str, path: str) -> tuple[str, dict[str, Any]]:
        """A name, with the annotations that keep the original where it could not be used as it is."""
        if isinstance(operation_id, str) and operation_id.strip():
            name, annotations = map_source_name(operation_id)
        else:
            name, annotations = "_".join([method.lower(), *re.findall(r"[A-Za-z0-9_-]+", path)]), {}
        unique, number = name, 1
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        if unique != name and isinstance(operation_id, str):
            annotations = {"sourceName": operation_id}
        return unique, annotations
