#!/usr/bin/env bash
# Formatting and static checks of our own files. Needs build/release, with the binding
# configured, and build/standin.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

grep -qs /binding/ build/release/compile_commands.json || {
  echo "lint: the binding is not configured in build/release; run: make clean lint" >&2
  exit 1
}

check() { # check <what> <command...>
  echo "lint: $1"
  shift
  "$@" || status=1
}
# Reads file names, one per line; no output unless something is found.
tidy() { xargs -r -n 2 -P "$(nproc)" clang-tidy --quiet -p "$1" 2> >(grep -Ev '^[0-9]+ warnings? generated' >&2); }
existing() { for path in "$@"; do [ ! -e "$path" ] || echo "$path"; done; }

mapfile -t cpp < <(find include src binding python tests examples -name '*.h' -o -name '*.cc' 2>/dev/null | sort)
mapfile -t python < <(existing setup.py python compat tests examples tools)

check "clang-format" clang-format --dry-run -Werror "${cpp[@]}"
check "clang-tidy src" tidy build/release < <(find src -name '*.cc' | sort)
# The extension is compiled as one file, but clang-tidy wants a command for each file. And clang cannot read g++'s precompiled
# header; without the option it finds what the files themselves include.
mkdir -p build/lint
python3 tools/compile_commands.py build/release/compile_commands.json binding >build/lint/compile_commands.json
check "clang-tidy binding" tidy build/lint < <(find binding -name '*.cc' | sort)
check "clang-tidy standin" tidy build/standin < <(find tests/standin -name '*.cc' | sort)
check "include graph" .venv/bin/python tools/include_graph.py
check "ruff check" .venv/bin/ruff check --quiet "${python[@]}"
check "ruff format" .venv/bin/ruff format --quiet --diff "${python[@]}"
check "mypy" .venv/bin/mypy --no-error-summary

[ $status -ne 0 ] || echo "lint: clean"
exit $status
