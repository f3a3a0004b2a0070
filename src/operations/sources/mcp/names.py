"""Names of tools as names of operations: mapped, and kept apart where two tools would share one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from operations.spec import map_source_name


def assign_names(originals: Iterable[str]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Each original's operation name with the annotations that keep the original.

    A name that fits is never changed. Of those that had to be mapped, one whose name is taken gets a suffix made from
    its original, so that it does not depend on which other tools there are or on their order.
    """
    mapped = {original: map_source_name(original) for original in originals}
    claims = Counter(name for name, _ in mapped.values())
    assigned: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for original, (name, kept) in mapped.items():
        if kept and claims[name] > 1:
            name = f"{name}_{hashlib.sha256(original.encode(errors='surrogatepass')).hexdigest()[:8]}"
        assigned[original] = name, kept
    return assigned
