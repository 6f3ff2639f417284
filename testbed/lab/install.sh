#!/bin/sh
# Install and enrol the Fairbed agent. The enrolment server of a lab puts the values of the lab
# (LAB_URL, LAB_NAME, LAB_CA, VERSION, HAS_WHEELS) before this text and sends it to `sh`. Nothing
# runs before the last line, so that a script that was cut in transit does nothing.
#
#   FAIRBED_TOKEN    the one-time token: the printed line assigns it before this text, in the input
#                    of `sh`, where no other user of the machine sees it
#   FAIRBED_PREFIX   folder of the virtual environment (default: ~/.local/share/fairbed, or
#                    /opt/fairbed for root)
#   PYTHON           the interpreter to use
#
# Arguments go to `device-agent join`. Run again, it upgrades or repairs: the identity stays.

NEEDED_MB=400 # the environment takes 200 MB, and its packages 45 MB until they are unpacked

fail() {
    echo "fairbed: $1" >&2
    exit 1
}

check_system() {
    case $(uname -s) in
        Linux | Darwin) ;;
        *) fail "the system must be Linux or macOS, got $(uname -s); on Windows use WSL 2" ;;
    esac
    if [ "$(uname -o 2>/dev/null)" = Android ]; then
        fail "Android's own Python has no packages of onnxruntime; install Debian in Termux by \
proot-distro and run this line there"
    fi
    machine=$(uname -m)
    case $machine in
        x86_64 | amd64 | aarch64 | arm64) ;;
        arm*) fail "the system must be 64-bit, got 32-bit ARM ($machine), for which onnxruntime has \
no package; install the 64-bit edition of the operating system" ;;
        *) fail "the processor must be x86_64 or aarch64, got $machine, for which onnxruntime has \
no package" ;;
    esac
    if [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 32 ]; then
        fail "the system must be 64-bit, got a 32-bit system on $machine, for which onnxruntime has \
no package; install the 64-bit edition of the operating system"
    fi
    if ldd --version 2>&1 | grep -qi musl; then
        fail "the C library must be glibc, got musl (Alpine), for which onnxruntime has no package; \
use a system such as Debian, Ubuntu or Fedora"
    fi
}

is_new_enough() {
    "$1" -c 'import struct, sys
sys.exit(sys.version_info < (3, 10) or struct.calcsize("P") != 8)' >/dev/null 2>&1
}

# The system's interpreters come first for root: the service's user cannot read root's home.
find_python() {
    first=
    if [ "$user" = 0 ]; then first="/usr/bin/python3 /usr/local/bin/python3"; fi
    for python in ${PYTHON:-$first python3 python3.13 python3.12 python3.11 python3.10}; do
        if is_new_enough "$python"; then return 0; fi
    done
    python=
    if command -v uv >/dev/null 2>&1; then return 0; fi
    found=$("${PYTHON:-python3}" -V 2>&1) || found="no working ${PYTHON:-python3}"
    fail "Python must be 3.10 or newer and 64-bit, got $found; install a newer one \
(sudo apt-get install python3), or uv (https://docs.astral.sh/uv), which brings one"
}

check_space() {
    folder=$1
    while ! [ -d "$folder" ]; do folder=$(dirname "$folder"); done
    free_kb=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
    case $free_kb in
        '' | *[!0-9]*) return 0 ;; # a file system that does not tell
    esac
    if [ "$free_kb" -lt $((NEEDED_MB * 1024)) ]; then
        fail "$folder must have $NEEDED_MB MB free, got $((free_kb / 1024)) MB; free some space, or \
name another folder: FAIRBED_PREFIX=FOLDER before sh"
    fi
}

# Download one file of the lab with the interpreter, which checks the lab's certificate.
fetch() {
    "$python" -c 'import shutil, ssl, sys, urllib.request
url, ca, path = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
with urllib.request.urlopen(url, timeout=60, context=context) as answer, open(path, "wb") as file:
    shutil.copyfileobj(answer, file)' "$LAB_URL/wheels/$1" "$ca" "$2"
}

# Print the name of the lab's wheel of pip, if it has one.
pip_wheel() {
    fetch '' "$scratch/index" || return 1
    sed -n 's/.*href="\(pip-[0-9][0-9.]*-py3-none-any\.whl\)".*/\1/p' "$scratch/index" | tail -n 1
}

# Build the environment, and set `installer`: what installs packages into it.
make_venv() {
    venv=$prefix/venv
    if command -v uv >/dev/null 2>&1; then
        installer=uv
        if ! is_new_enough "$venv/bin/python"; then
            if [ -z "$python" ]; then export UV_PYTHON_INSTALL_DIR="$prefix/python"; fi
            uv venv -q --clear --python "${python:->=3.10}" "$venv" </dev/null ||
                fail "uv could not build $venv (its reason is above)"
        fi
        return 0
    fi
    installer=pip
    if is_new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    problem="got $python without ensurepip and pip; install them: \
sudo apt-get install -y python3-venv"
    if "$python" -c 'import ensurepip, venv; ensurepip.version()' >/dev/null 2>&1; then
        "$python" -m venv --clear "$venv" >"$scratch/log" 2>&1 && return 0
        # venv keeps the reason to itself, such as Debian 13 without ca-certificates.
        "$venv/bin/python" -m ensurepip >"$scratch/log" 2>&1 && return 0
        reason=$(grep -v CalledProcessError "$scratch/log" | grep -i error | tail -n 1)
        problem="but its ensurepip fails (${reason:-no reason}); install what it needs: \
sudo apt-get install -y ca-certificates python3-venv"
    fi
    # Debian and Ubuntu without python3-venv: the environment gets pip from the system or the lab.
    "$python" -m venv --without-pip --clear "$venv" >/dev/null 2>&1 ||
        fail "Python must be able to build virtual environments, got $python without the module \
venv; install it: sudo apt-get install -y python3-venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if "$python" -m pip --version >/dev/null 2>&1; then
        pip_install_with "$python -m pip" --target "$site" pip && return 0
    fi
    wheel=$(pip_wheel) && [ -n "$wheel" ] && fetch "$wheel" "$scratch/$wheel" &&
        "$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' \
            "$scratch/$wheel" "$site" && return 0
    fail "Python must have pip, $problem"
}

# A token that is used or expired must not be found after minutes of installation. It goes to curl
# by its input; without an answer the installation goes on, and `join` asks again. A device that has
# an identity keeps it, whatever became of the token; arguments may name another folder for it.
check_token() {
    if [ -z "$token" ] || [ $# -gt 0 ] || ! command -v curl >/dev/null 2>&1; then return 0; fi
    for config in "${XDG_CONFIG_HOME:-$HOME/.config}" /var/lib; do
        if [ -e "$config/fairbed/agent.toml" ]; then return 0; fi
    done
    answer=$(printf '{"token":"%s"}' "$token" |
        curl -s --max-time 20 --cacert "$ca" --data-binary @- "$LAB_URL/token" 2>/dev/null) ||
        return 0
    problem=$(printf '%s' "$answer" | sed -n 's/^{"problem":"\(.*\)"}$/\1/p')
    if [ -n "$problem" ]; then fail "$problem"; fi
}

pip_install_with() {
    program=$1
    shift
    # shellcheck disable=SC2086 # a command and its first arguments
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
        $program install -q "$@" </dev/null
}

install_from_lab() {
    case $installer in
        uv) SSL_CERT_FILE=$ca UV_CONCURRENT_DOWNLOADS=2 uv pip install -q \
            --python "$venv/bin/python" --no-index --find-links "$LAB_URL/wheels/" "$@" </dev/null ;;
        # requests prefers its variable to the option
        pip) REQUESTS_CA_BUNDLE=$ca pip_install_with "$venv/bin/python -m pip" --cert "$ca" \
            ${legacy:+"$legacy"} --no-index --find-links "$LAB_URL/wheels/" "$@" ;;
    esac
}

# pip 24.2 to 26.0, of Debian 13 for example, checks the certificate of no IP address but by its
# former code (https://github.com/pypa/pip/issues/12906), which other versions do not have.
try_from_lab() {
    legacy=
    install_from_lab "$@" 2>"$scratch/log" && return 0
    grep -q check_hostname "$scratch/log" || return 1
    legacy=--use-deprecated=legacy-certs
    install_from_lab "$@" 2>"$scratch/log"
}

install_from_index() {
    case $installer in
        uv) uv pip install -q --python "$venv/bin/python" "$@" </dev/null ;;
        pip) pip_install_with "$venv/bin/python -m pip" "$@" ;;
    esac
}

# All packages from the lab; else Fairbed from the lab and the others from the package index; else
# all from the index.
install_agent() {
    package=fairbed==$VERSION
    if [ "$HAS_WHEELS" = yes ]; then
        echo "fairbed: installing $package from the lab"
        if try_from_lab --upgrade "$package" &&
            try_from_lab --no-deps --force-reinstall "$package"; then
            return 0
        fi
        echo "fairbed: the lab cannot serve $("$venv/bin/python" -V) on $(uname -m) \
($(tail -n 1 "$scratch/log")); installing from the package index"
        own=fairbed-$VERSION-py3-none-any.whl
        if fetch "$own" "$scratch/$own" 2>/dev/null; then package=$scratch/$own; fi
    else
        echo "fairbed: installing $package from the package index"
    fi
    install_from_index --upgrade "$package" ||
        fail "the packages could not be installed (the reason is above); give the device Internet \
access, or make a wheelhouse on the lab host (fairbed lab wheelhouse) and run this line again"
}

main() {
    set -eu
    umask 022 # root: the user of the service reads the environment
    user=$(id -u)
    token=${FAIRBED_TOKEN:-}
    unset FAIRBED_TOKEN # of no use to the programs before `join`
    check_system
    find_python
    if [ "$user" = 0 ]; then prefix=/opt/fairbed; else
        prefix=${XDG_DATA_HOME:-$HOME/.local/share}/fairbed
    fi
    prefix=${FAIRBED_PREFIX:-$prefix}
    check_space "$prefix"
    mkdir -p "$prefix" || fail "$prefix must be a folder that this user may write; name another: \
FAIRBED_PREFIX=FOLDER before sh"
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    ca=$scratch/lab-ca.pem
    printf '%s\n' "$LAB_CA" >"$ca"
    echo "fairbed: enrolling this device at the lab $LAB_NAME; the agent goes to $prefix"
    check_token "$@"
    make_venv
    install_agent
    FAIRBED_TOKEN=$token "$venv/bin/device-agent" join --lab "$LAB_URL" --ca "$ca" "$@" </dev/null ||
        fail "the agent is installed, but not enrolled (the reason is above)"
}

main "$@"
