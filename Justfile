# Every command of the house. `./just` finds or installs the runner and passes its arguments on.

set positional-arguments

export PATH := justfile_directory() / ".venv/bin:" + env_var("PATH")

# `just test -- -k wire` hands over the dashes too.
drop_dashes := 'if [ "${1:-}" = -- ]; then shift; fi;'

# List the recipes.
[private]
@default:
    "{{ just_executable() }}" --list --unsorted

# Run the main job on a fleet of emulated devices: a first look.
[no-exit-message]
@demo *args: (setup "demo")
    {{ drop_dashes }} fairbed run examples/quickstart.toml "$@"

# A worker for each core; `just test -- -n 0 -s` runs without workers.
workers := "-n logical --maxprocesses 8 --dist worksteal"

# Run all checks and the fast tests, in minutes; what follows goes to pytest: just test -- -k wire
[no-exit-message]
@test *args: check
    {{ drop_dashes }} pytest --tier fast {{ workers }} "$@"

# Run all checks and all tests, on Python 3.10 to 3.14, too: every broker, kill matrices, theory, benchmarks
[no-exit-message]
test-all *args: check
    #!/bin/sh
    {{ drop_dashes }}
    status=0
    if [ $# -eq 0 ]; then
        "{{ just_executable() }}" test-pythons || status=$?
        "{{ just_executable() }}" coverage || status=$?
        "{{ just_executable() }}" test-kernel || status=$?
    fi
    pytest --tier all {{ workers }} "$@" || status=$?
    exit "$status"

# Run the tests that `just test` leaves out.
[no-exit-message]
@test-rest *args: setup
    {{ drop_dashes }} pytest --tier rest {{ workers }} "$@"

# Build .venv: `demo` (no torch) or `dev` (everything). Quick when nothing changed.
@setup level="dev":
    sh tools/setup.sh "$1"

# Format the code and sort the imports.
@fmt *paths=".": setup
    ruff check --fix --select I "$@"
    ruff format "$@"

# Lint and check the format.
@lint: setup
    ruff check
    ruff format --check
    python tools/check_words.py

# Check everything that needs no run: lint, types, import rules, licences.
check: lint
    #!/bin/sh
    lint-imports --no-logo &
    status=0
    python tools/supply_chain.py licences || status=$?
    mypy || status=$?
    wait $! || status=$?
    exit "$status"

# Run the tests that start a real broker.
[no-exit-message]
@test-broker *args: setup
    {{ drop_dashes }} pytest -m broker "$@"

# Run grids and replays on two Ray nodes of this machine, and kill one of them.
[no-exit-message]
@test-cluster *args: setup
    {{ drop_dashes }} pytest -n 0 tests/testbed/cluster -k "not control_room" "$@"

# Run the tests of a device on Python 3.10 to 3.14; just test-pythons 3.10 3.14 -- tests/wire
[no-exit-message]
@test-pythons *args:
    python3 tools/pythons.py "$@"

# Test for 64-bit ARM, in an emulated Debian: wheels, tests, a device; as root, about 15 minutes
[no-exit-message]
@test-arm64 *steps: setup
    {{ drop_dashes }} python tools/arm64.py "$@"

# Run `./just demo` and `./just test` in a Debian with python3 and git only; as root, about 20 minutes
[no-exit-message]
@test-minimal *steps: setup
    {{ drop_dashes }} python tools/minimal.py "$@"

# Test on a kernel with cgroup v2 and netem, under systemd, in User Mode Linux; as root
[no-exit-message]
@test-kernel *steps: setup
    {{ drop_dashes }} python tools/kernel.py "$@"

# Check the list of branches of pure folders that no test reaches (docs/uncovered-branches.md).
[no-exit-message]
coverage: setup
    #!/bin/sh
    if python -c 'import coverage' 2>/dev/null; then exec python tools/uncovered_branches.py; fi
    echo "coverage: skipped, coverage.py needs Python 3.11 or newer"

# Feed every decoder with mutations of its corpus; crashes and slow inputs go to .fuzz/: just fuzz --only messages
[no-exit-message]
@fuzz *args: setup
    {{ drop_dashes }} fairbed bench fuzz --inputs 200000 --keep .fuzz "$@"

# Write golden bytes, screens and the reference of the experiment file anew; then read the diff.
[no-exit-message]
@snap: setup
    pytest --snap -p no:randomly tests/wire/test_golden.py tests/coordinator/tui
    python tools/write_reference.py

# Draw the pictures of the control room and the report in README and docs anew, from a run of the quickstart.
[no-exit-message]
@pictures *run: setup
    python tools/pictures.py "$@"

# Build the sdist and the wheel into dist/, and check what is in them.
[no-exit-message]
@dist: setup
    python tools/build_dist.py

# Resolve versions and hashes for locks/ anew, from pyproject.toml and constraints.txt.
[no-exit-message]
@lock: setup
    sh tools/setup.sh supply .venv-supply
    PATH="$PATH:$PWD/.venv-supply/bin" python tools/supply_chain.py lock

# Look for known vulnerabilities of the locked versions; exits with 2 where it could not check all.
[no-exit-message]
@audit: setup
    sh tools/setup.sh supply .venv-supply
    PATH="$PATH:$PWD/.venv-supply/bin" python tools/supply_chain.py audit

# Build dist/ with locks, bill of materials (SBOM) and signed checksums: just release ~/.ssh/KEY
[no-exit-message]
@release key: dist
    sh tools/setup.sh supply .venv-supply
    PATH="$PATH:$PWD/.venv-supply/bin" python tools/supply_chain.py release "$1" dist

# Check signature and files of a release: just verify [FOLDER [SIGNERS]]
[no-exit-message]
@verify folder="dist" *signers: setup
    python tools/supply_chain.py verify "$@"

# Measure: every number of the README has its command in benchmarks/.
bench *args: setup
    @{{ drop_dashes }} fairbed bench "$@"
