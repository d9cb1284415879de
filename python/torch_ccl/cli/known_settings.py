"""The settings of the library as the commands see them: their names, values, and misspelt ones."""

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

BEGINNING = "CCL_"

#: Names that begin so and are no settings of the library: of the Python package, of its
#: installation, and of `torch-ccl run`.
OTHER_NAMES = ("CCL_DEVICES", "CCL_REPLACE", "CCL_ROOT", "CCL_RSH")


class SettingError(ValueError):
    """A setting makes no sense; the text names it."""


def library_info() -> dict:
    """What the library would do with this environment. Raises SettingError."""
    from torch_ccl import _C

    try:
        return _C.info()
    except RuntimeError as problem:
        raise SettingError(str(problem)) from None


@contextmanager
def _without_settings() -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(BEGINNING)}
    try:
        for name in kept:
            del os.environ[name]
        yield
    finally:
        os.environ.update(kept)


def setting_names() -> list[str]:
    """Also if the environment has a value that makes no sense. The library warns of names that it
    does not know when it is asked first: here, where there are none, for we say that ourselves."""
    with _without_settings():
        return [row["name"] for row in library_info()["settings"]]


def unknown_settings(environment: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """With the nearest name that there is, or nothing."""
    unknown = {
        name
        for name in environment
        if name.startswith(BEGINNING) and name not in (*names, *OTHER_NAMES)
    }
    nearest = {name: difflib.get_close_matches(name, names, n=1) for name in sorted(unknown)}
    return {name: "".join(found) for name, found in nearest.items()}


def settings_in_force(library: dict, environment: Mapping[str, str]) -> list[dict]:
    """Name, value and where it comes from."""
    rows = []
    for row in library["settings"]:
        value, source = row["value"], "environment" if row["is_set"] else "default"
        if row["name"] == "CCL_ATL_PROVIDER" and not value and environment.get("FI_PROVIDER"):
            value, source = environment["FI_PROVIDER"], "FI_PROVIDER"
        rows.append({"name": row["name"], "value": value, "from": source})
    return rows
