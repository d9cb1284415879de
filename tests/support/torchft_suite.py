"""torchft's own tests, run on Gloo or on ccl in Gloo's place, in the environment of applications.

results = run_suite("ccl")
assert passed(run_suite("gloo")) <= passed(results)

The tests are those in torchft's package. The plugin torchft_suite/torchft_backend.py puts ccl in
Gloo's place.
"""

import json
import tempfile
from pathlib import Path

from support.applications import ENVIRONMENT, PYTHON, run_bounded, variables
from support.commands import ROOT
from support.python_environments import site_packages

PLUGIN_DIR = ROOT / "tests/torchft_suite"
BOUND_S = 1200
TEST_BOUND_S = 240
RETRIES = 2
#: They need GPUs, or packages that have nothing to do with the process group.
LEFT_OUT = ("quantization_test.py", "torchcomms_test.py")


def packages() -> Path:
    directory = site_packages(ENVIRONMENT)
    assert (directory / "torchft").is_dir(), "torchft is missing: tools/setup.sh applications"
    return directory


def test_files() -> list[Path]:
    files = (packages() / "torchft").rglob("*_test.py")
    return sorted(path for path in files if path.name not in LEFT_OUT)


def run_pytest(backend: str, files: list[Path], tests: str = "") -> dict[str, dict]:
    """The outcome of each test whose name `tests` matches."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        plugins = ["-p", "torchft_backend", "-p", "no:cacheprovider"]
        options = ["-c", "/dev/null", "--rootdir", packages(), "-q", "--tb=short"]
        options += ["--collect-in-virtualenv", "--timeout", str(TEST_BOUND_S)]
        environment = variables(
            PYTHONPATH=str(PLUGIN_DIR),
            PYTHONHASHSEED="0",  # the names of some tests depend on it
            TORCHFT_SUITE_BACKEND=backend,
            TORCHFT_SUITE_RESULTS=str(results),
            TORCHFT_SUITE_TESTS=tests,
            # The tests of DiLoCo compare with files that are not in the package: Gloo writes them.
            WRITE_FIXTURE=str(backend == "gloo").lower(),
        )
        command = [PYTHON, "-m", "pytest", *plugins, *options, *files]
        result = run_bounded(command, environment, BOUND_S)
        assert results.exists(), f"pytest: exit code {result.returncode}\n{result.output}"
        return json.loads(results.read_text())


def run_suite(backend: str, tests: str = "") -> dict[str, dict]:
    """Results by the names of the tests; a test that fails has run RETRIES more times."""
    (packages() / "test_fixtures").mkdir(exist_ok=True)
    results = run_pytest(backend, test_files(), tests)
    for _ in range(RETRIES):
        for name in [name for name, result in results.items() if result["outcome"] == "failed"]:
            again = run_pytest(backend, [packages() / name])
            results[name] = again.get(name, results[name])
    return results


def passed(results: dict[str, dict]) -> set[str]:
    return {name for name, result in results.items() if result["outcome"] == "passed"}
