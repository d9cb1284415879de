"""`make release`: refusals, notes and checksums. The workflows, which run make targets alone."""

import importlib.util
import re
import sys
import zipfile
from pathlib import Path

import pytest
from support.commands import ROOT, run, shell

spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

COMMIT = "git -c user.name=x -c user.email=x@x -c commit.gpgsign=false commit --quiet -m x"
CHANGELOG = """# Changelog

## Unreleased

## 1.2.0 - 2026-01-02

### Added

- One thing.

## 1.2

## 1.1.0

- First.
"""


@pytest.fixture
def repository(tmp_path) -> Path:
    """Version 1.2.0, committed, without a tag."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    shell(f"git init --quiet; git add .; {COMMIT}", cwd=tmp_path)
    return tmp_path


def refusal(repository: Path) -> str:
    with pytest.raises(release.Refusal) as caught:
        release.release(repository, repository / "dist", "")
    assert not (repository / "dist").exists()
    return str(caught.value)


# ---- refusals


def test_head_without_the_tag(repository):
    shell("git tag v1.1.0", cwd=repository)
    assert "HEAD is not at the tag v1.2.0" in refusal(repository)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_tree_with_changes(repository, name):
    shell("git tag v1.2.0", cwd=repository)
    (repository / name).write_text("changed\n")
    assert refusal(repository) == f"the tree has changes that are not committed: {name}"


def test_version_without_notes(repository):
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    shell(f"{COMMIT} --all; git tag v1.2.0", cwd=repository)
    assert refusal(repository) == "CHANGELOG.md has no section 1.2.0"


def test_entries_that_belong_to_no_version():
    changelog = CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n- Not yet.\n")
    with pytest.raises(release.Refusal, match=r"entries under Unreleased: move them to 1\.2\.0"):
        release.notes(changelog, "1.2.0")


@pytest.mark.parametrize(
    ("name", "torches", "reason"),
    [
        (
            "x-manylinux_2_28_x86_64.whl",
            "2.13.0 2.15",
            r"for torch \['2.13'\], not \['2.13', '2.15'\]",
        ),
        ("x-linux_x86_64.whl", "2.13", "needs a newer glibc"),
    ],
)
def test_wheel_with_wrong_contents(tmp_path, name, torches, reason):
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("torch_ccl/extensions/torch2.13/_C.so", "")
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(release.Refusal, match=reason),
    ):
        patch.setattr(release.platform, "machine", lambda: "x86_64")
        release.check_contents(tmp_path / name, torches)


def test_a_refusal_is_one_line(repository):
    (repository / "tools").mkdir()
    (repository / "tools/release.py").write_text((ROOT / "tools/release.py").read_text())
    result = run([sys.executable, repository / "tools/release.py", repository / "dist"])
    assert result.returncode == 1
    assert re.fullmatch("release: HEAD is not at the tag v1.2.0.*\n", result.output)


# ---- notes, sources, checksums


@pytest.mark.parametrize(
    ("version", "text"),
    [("1.2.0", "### Added\n\n- One thing.\n"), ("1.1.0", "- First.\n")],
)
def test_notes(version, text):
    assert release.notes(CHANGELOG, version) == text


@pytest.mark.parametrize("version", ["1.2", "1.3.0", "1x1.0"])
def test_no_notes(version):
    with pytest.raises(release.Refusal):
        release.notes(CHANGELOG, version)


def test_this_version_has_notes():
    assert release.section((ROOT / "CHANGELOG.md").read_text(), release.version_of(ROOT))


def test_the_copy_has_what_is_committed(repository, tmp_path_factory):
    shell("git tag v1.2.0; touch build.o", cwd=repository)
    copy = tmp_path_factory.mktemp("copy")
    release.write_copy(repository, "v1.2.0", copy)
    assert sorted(path.name for path in copy.iterdir()) == ["CHANGELOG.md", "pyproject.toml"]


def test_checksums(tmp_path):
    (tmp_path / "b.whl").write_text("b")
    (tmp_path / "a.tar.gz").write_text("a")
    (tmp_path / release.NOTES).write_text("notes")
    for _ in range(2):
        release.write_checksums(tmp_path)
        checked = shell("sha256sum --check SHA256SUMS", cwd=tmp_path)
        assert checked.splitlines() == ["a.tar.gz: OK", "b.whl: OK"]


# ---- workflows

ACTIONS = {
    "actions/checkout",
    "actions/upload-artifact",
    "softprops/action-gh-release",
}


@pytest.mark.parametrize(
    "workflow", sorted(ROOT.glob(".github/workflows/*")), ids=lambda path: path.name
)
def test_workflows_run_make_targets(workflow):
    steps = re.findall(r"(?m)^ *- (.*)$", workflow.read_text())
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert steps
    for step in steps:
        kind, _, value = step.partition(": ")
        if kind == "run":
            assert re.fullmatch(r"make [\w-]+", value) and value.split()[1] in targets, step
        else:
            assert kind == "uses" and value.split("@")[0] in ACTIONS, step
    assert workflow.read_text().count("run:") == sum(step.startswith("run:") for step in steps)


def test_workflows_cover_the_targets():
    text = "".join(path.read_text() for path in ROOT.glob(".github/workflows/*"))
    called = set(re.findall(r"run: make ([\w-]+)", text))
    assert called == {"test", "lint", "docs", "wheel", "sdist", "release"}
