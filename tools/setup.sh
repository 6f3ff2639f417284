#!/bin/sh
# Build a virtual environment: setup.sh LEVEL [FOLDER]. Fast if nothing has changed.
#
#   runner   the `just` runner alone
#   demo     the packages of the quickstart, without torch
#   device   the packages of a device, with the test tools
#   supply   the tools of a release: locks, vulnerabilities, bill of materials
#   dev      everything, with the tools for checks and tests
#
# FOLDER is .venv by default. PYTHON names the interpreter; without it the first of python3,
# python3.13, ... python3.10 that is new enough is taken.
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."
level=${1:-dev}
venv=${2:-.venv}
case $level in
    runner | demo | device | supply | dev) ;;
    *)
        echo "setup: level must be runner, demo, device, supply or dev, got $level" >&2
        exit 2
        ;;
esac

PIP_DEFAULT_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-60} # seconds; pip's own 15 is short for a slow mirror
PIP_RETRIES=${PIP_RETRIES:-8}
export PIP_DEFAULT_TIMEOUT PIP_RETRIES PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export PIP_ROOT_USER_ACTION=ignore

PIP_WITH_GROUPS='pip>=25.1' # the first that knows dependency groups

fail() {
    echo "setup: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if is_new_enough "$python"; then return; fi
    done
    python=${PYTHON:-python3}
    fail "Python must be 3.10 or newer, got $("$python" -V 2>/dev/null || echo "no working $python"); \
install one and name it: PYTHON=python3.12 ./just demo"
}

# Debian's python3 has no ensurepip: pip then comes from the package index.
make_venv() {
    echo "setup: building $venv with $("$python" -V)"
    if "$python" -c 'import ensurepip, venv; ensurepip.version()' >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv"
    elif "$python" -m venv --without-pip --clear "$venv"; then
        "$venv/bin/python" tools/fetch_pip.py ||
            fail "pip could not be fetched (its reason is above); \
type the same command again, or: sudo apt-get install -y $(basename "$python")-venv"
    else
        fail "Python must be able to build virtual environments, got $python without venv; \
type: sudo apt-get install -y $(basename "$python")-venv"
    fi
}

install() {
    "$venv/bin/python" -m pip install -c constraints.txt "$@" ||
        fail "pip could not install (its reason is above); type the same command again to go on"
}

# It must run, be this checkout's (its scripts hold the path) and have the Python that was asked.
is_usable() {
    is_new_enough "$venv/bin/python" && [ -x "$venv/bin/pip" ] && grep -qsF "$(pwd -P)/$venv" "$venv/bin/activate" &&
        { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -V 2>&1)" = "$("$venv/bin/python" -V)" ]; }
}

# A source distribution has no links; a git client without links writes files in their place.
for folder in wire device_agent coordinator profiles testbed examples; do
    if [ -f fairbed/__init__.py ] && ! [ -d "fairbed/$folder" ]; then
        ln -sf "../$folder" "fairbed/$folder"
    fi
done

if ! is_usable; then
    find_python
    make_venv
fi

stamp="$("$venv/bin/python" -V) $(cat pyproject.toml constraints.txt "$0" | cksum)"
is_done() {
    [ "$(cat "$venv/.done-$1" 2>/dev/null)" = "$stamp" ]
}

case $level in
    runner)
        install -q rust-just
        exit
        ;;
    demo)
        if is_done demo || is_done dev; then exit; fi
        install -e '.[testbed,broker]'
        ;;
    device)
        if is_done device; then exit; fi
        install -q --upgrade "$PIP_WITH_GROUPS"
        install -e . --group test
        ;;
    supply)
        if is_done supply; then exit; fi
        install -q --upgrade "$PIP_WITH_GROUPS"
        install -q --group supply
        ;;
    dev)
        if is_done dev; then exit; fi
        install -q --upgrade "$PIP_WITH_GROUPS"
        # torch on its own and first: the exact version leaves no room for a plain, larger build.
        install "torch==$(sed -n 's/^torch==//p' constraints.txt)"
        install -e '.[dev]' --group test --group analysis --group lint
        ;;
esac
echo "$stamp" >"$venv/.done-$level"
