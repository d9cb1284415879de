"""Settings in the environment: their source, and names that are not settings."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from torch_ccl.libtccl import Setting, SettingsTable

PREFIX = "CCL_"


def unknown_settings(environment: Mapping[str, str], table: SettingsTable) -> dict[str, str]:
    """Names in the environment that are not settings, each with the most similar setting or ""."""
    names = [row["name"] for row in table["settings"]]
    known = {*names, *table["package_variables"]}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return {name: "".join(difflib.get_close_matches(name, names, n=1)) for name in unknown}


def settings_with_source(
    settings: Iterable[Setting], environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Name, value and source of each setting."""
    rows = []
    for row in settings:
        value, source = row["value"], "environment" if row["is_set"] else "default"
        if row["name"] == "CCL_ATL_PROVIDER" and not value and environment.get("FI_PROVIDER"):
            value, source = environment["FI_PROVIDER"], "FI_PROVIDER"
        rows.append({"name": row["name"], "value": value, "from": source})
    return rows
