"""Settings in the environment: their source, and names that are not settings."""

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch_ccl.libtccl import Setting, SettingsTable

PREFIX = "CCL_"
MODULES_SUFFIX = "_modshare"  # environment modules count the uses of a variable under such a name


def unknown_settings(environment: Mapping[str, str], table: SettingsTable) -> dict[str, str]:
    """Names in the environment that are not settings, each with the most similar setting or ""."""
    names = [row["name"] for row in table["settings"]]
    patterns = [*names, *(row["name"] for row in table["other_variables"])]
    unknown = sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and not name.endswith(MODULES_SUFFIX)
        and not any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    return {name: "".join(difflib.get_close_matches(name, names, n=1)) for name in unknown}


def ignored_settings(environment: Mapping[str, str], table: SettingsTable) -> dict[str, str]:
    """oneCCL's variables in the environment that have no effect, each with the reason."""
    settings = {row["name"] for row in table["settings"]}
    # The longest pattern that matches a name is its row, as in the library.
    rows = sorted(table["other_variables"], key=lambda row: len(row["name"]), reverse=True)
    ignored = {}
    for name, value in sorted(environment.items()):
        row = next((row for row in rows if fnmatchcase(name, row["name"])), None)
        if row is None or name in settings or name.endswith(MODULES_SUFFIX):
            continue
        if row["is_ignored"] and value.strip(" ") not in ("", row["default"]):
            ignored[name] = row["doc"]
    return ignored


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
