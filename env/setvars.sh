# Sets PATH, LD_LIBRARY_PATH and CMAKE_PREFIX_PATH for this installation of torch-ccl:  . <prefix>/env/setvars.sh
# In bash and zsh from anywhere; in other shells from inside <prefix>, or with CCL_ROOT set. Safe to source twice.

if [ -n "${BASH_VERSION:-}" ]; then
  _ccl_file=${BASH_SOURCE[0]}
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval '_ccl_file=${(%):-%x}'
else # a POSIX shell does not tell a sourced file its own name
  _ccl_file=${CCL_ROOT:-.}/env/setvars.sh
fi

if [ ! -f "$_ccl_file" ]; then
  echo "setvars.sh: this shell cannot locate the installation: set CCL_ROOT to its directory first" >&2
  unset _ccl_file
  return 1
fi

CCL_ROOT=$(CDPATH='' cd -- "$(dirname -- "$_ccl_file")/.." && pwd)

# _ccl_prepend <directory> <list>: the list with the directory first, unless it holds it already
_ccl_prepend() {
  case ":$2:" in
    *":$1:"*) printf '%s' "$2" ;;
    *) printf '%s' "$1${2:+:$2}" ;;
  esac
}
PATH=$(_ccl_prepend "$CCL_ROOT/bin" "${PATH:-}")
LD_LIBRARY_PATH=$(_ccl_prepend "$CCL_ROOT/lib" "${LD_LIBRARY_PATH:-}")
CMAKE_PREFIX_PATH=$(_ccl_prepend "$CCL_ROOT" "${CMAKE_PREFIX_PATH:-}")
export CCL_ROOT PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH

unset -f _ccl_prepend
unset _ccl_file
