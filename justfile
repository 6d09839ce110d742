# Every task a person does. `./just` works on a fresh machine; it installs what a task needs.

set positional-arguments

python := ".venv/bin/python"
pip := python + " -m pip install --quiet --disable-pip-version-check"
uv := "UV_HTTP_TIMEOUT=20 .venv/bin/uv pip install --quiet --compile-bytecode --python " + python
# What a machine without a GPU gets. numpy 2.4 breaks dynamic `range` in the Triton interpreter.
cpu_torch := "torch==2.13.0 triton==3.7.1 'numpy<2.4'"

pytest := "PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 " + python + " -m pytest -n 2 --dist loadfile --no-loadscope-reorder"

[private]
default:
    @{{ just_executable() }} --list

# The main job: check this machine, measure, decide. On a GPU if there is one. `just all --help`
all *arguments: install
    .venv/bin/nsabench all "$@"

# One thread each: threads that wait for cores that others hold made an honest call ten times as slow
# as the next. In order: conftest.py has the longest files first, and xdist's own order has them last.

# The tests that guard a change, two files at a time. `just test -n 0 FILE` for one alone
test *arguments: install
    {{ pytest }} -m "not full" "$@"

# All tests, also of containers, Slurm, a browser, S3 and attacks: conftest.py names them
test-all *arguments: install
    {{ pytest }} "$@"

# All attacks in tests/attacks as uid 1000 without any of root's powers, or as who one is
attacks-as-user *arguments: install
    {{ python }} -m tests.attacks.elsewhere user "$@"

# The same in the image of the combo cpu, with no network and nothing to write to: `just image cpu`
attacks-in-container *arguments: install
    {{ pip }} -e '.[images]'
    {{ python }} -m tests.attacks.elsewhere container "$@"

# Formatter, linter, layers of imports, type checker
lint: install
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/lint-imports --no-cache
    .venv/bin/mypy

# Rewrite the sources as the formatter wants them
format: install
    .venv/bin/ruff format .
    .venv/bin/ruff check --fix .

# What this machine is, what is wrong with it, and what to do about it
doctor *arguments: install
    .venv/bin/nsabench doctor "$@"

# Everything CI runs
ci: lint test-all

# The 26 rows shapes on this machine's GPU, into results/rows (any CUDA host)
gpu-rows *arguments: install
    .venv/bin/nsabench all matrices/selection_rows.yaml --device cuda --out results/rows "$@"

# The run that docs/results publishes, into results/published; one that was begun there is resumed
gpu-publish *arguments: install
    .venv/bin/nsabench all published --device cuda --resume results/published "$@"

# Every public library that is here, measured beside the kernels (CUDA)
gpu-packages *arguments: install
    .venv/bin/nsabench all tests/gpu/packages.yaml --device cuda --out results/packages "$@"

# One implementation against itself, 200 cells: how often does the bench see a difference?
gpu-self-check *arguments: install
    .venv/bin/nsabench all tests/gpu/self_check.yaml --kernels tests/gpu/self_check.py --device cuda --out results/self-check "$@"

# One implementation against itself in 20 processes of three shapes: what does a process change? (CUDA)
gpu-offsets: install
    {{ python }} -m tools.process_offsets

# How far off is the worst row of every honest implementation? Into results/worst-rows, on all GPUs
gpu-worst-rows seconds="600" workers="14": install
    mkdir -p results/worst-rows
    {{ python }} -m tools.worst_rows cuda results/worst-rows {{ seconds }} {{ workers }}

# A small model learns for SECONDS; what its layers select becomes the distribution `recorded` (CUDA)
gpu-record seconds="400": install
    {{ python }} -m tools.record_selections {{ seconds }} nsabench/ops/recorded.xz

# Are the kernels here as fast as those of another checkout? `just gpu-against ../older` (CUDA)
gpu-against other *arguments: install
    {{ python }} kernels/benchmarks/against.py "{{ other }}/kernels/nsa_kernels" {{ arguments }}

# The newest five Tritons and what they break, into results/versions; FOLDER: see pack-tritons (CUDA)
gpu-versions folder *arguments: install
    .venv/bin/nsabench versions tests/gpu/versions.yaml --tritons "{{ folder }}" --triton all --device cuda --out results/versions "${@:2}"

# Tritons as small archives, for a GPU host with that Python and no network: under 64 MiB each
pack-tritons folder versions="3.1.0,3.3.1,3.5.1,3.7.1,3.9.0" python_there="3.12": install
    {{ python }} -m tools.pack_tritons pack "{{ folder }}" "{{ versions }}" "{{ python_there }}"

# The archives of ARCHIVES that pack-tritons made, unpacked below FOLDER
unpack-tritons archives folder:
    {{ python }} -m tools.pack_tritons unpack "{{ folder }}" "{{ archives }}"

# How long each call of the kernels holds the CPU, beside SDPA, and where that goes (CUDA)
gpu-host *arguments: install
    {{ python }} kernels/benchmarks/host.py "$@"

# The tests that need a CUDA device; those that time something, one at a time
gpu-test *arguments: install
    {{ python }} -m pytest -m "gpu and not untimed" tests/gpu "$@"
    # -v: a log that is cut off names who failed.
    {{ python }} -m pytest -v -n 12 -m "untimed or not gpu" tests/gpu kernels/tests "$@"

# Install nsabench, the kernels, and a torch if there is none, into .venv
install:
    #!/bin/sh
    set -eu
    stamp=.venv/installed
    if ! [ "$stamp" -nt pyproject.toml ] || ! [ "$stamp" -nt kernels/pyproject.toml ]; then
        echo 'installing nsabench, the kernels, torch and Triton into .venv: this takes minutes' >&2
        set -- -e '.[dev]' -e kernels
        own=True
        if {{ python }} -c 'import torch, triton' 2>/dev/null; then
            own=$({{ python }} -c 'import sys, torch; print(torch.__file__.startswith(sys.prefix))')
        elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
            set -- torch triton 'numpy<2.4' "$@"
        else
            set -- {{ cpu_torch }} "$@"
        fi
        # uv unpacks and compiles with all cores, but it knows neither what pip is set to nor what
        # lies outside of .venv.
        settings=$({{ python }} -m pip config list)  # of files and the environment
        sources=$(echo "$settings" | grep -E '[.](index-url|no-index|constraint)=' || true)
        links=$(echo "$settings" | sed -n "s/.*[.]find-links='\(.*\)'/\1/p" | tail -1 | tr ' ' ,)
        if ! { [ "$own$sources" = True ] && {{ pip }} uv \
            && UV_FIND_LINKS="${links:-${UV_FIND_LINKS:-}}" {{ uv }} "$@"; }; then
            {{ pip }} "$@"
        fi
        touch "$stamp"
        echo 'installed. Next: `. .venv/bin/activate`, then `nsabench doctor`' >&2
    fi
    # A worker in its sandbox cannot keep what it compiles, and each would do it again.
    {{ python }} -m compileall -q nsabench kernels/nsa_kernels

# Add a finished, signed run to docs/results/archive, and take the README's pictures of it
publish run: install
    #!/bin/sh
    set -eu
    .venv/bin/nsabench archive add "{{ run }}" --to docs/results/archive
    .venv/bin/nsabench archive verify docs/results/archive
    {{ just_executable() }} pictures "{{ run }}"

# The README's pictures, of the page and the terminal of a run and of the site, into docs/images
pictures run: site
    #!/bin/sh
    set -eu
    # As this version shows it: the page of a signed run is what it was, or was never made.
    pages="results/pages/$(basename "{{ run }}")"
    .venv/bin/nsabench report "{{ run }}" --out "$pages"
    PYTHONPATH=. {{ python }} docs/screenshots.py "$pages/report.html" docs/images \
        --site results/site/index.html --run "{{ run }}"
    echo "its page: $pages/report.html; pictures: docs/images"

# The manual as a site with search, into results/manual/site; a link that leads nowhere is an error
docs: install
    {{ python }} docs/manual.py
    @echo "the manual: results/manual/site/index.html"

# The site of the published runs, into results/site: open its index.html, or copy it to any host
site: install
    #!/bin/sh
    set -eu
    rm -rf results/site
    .venv/bin/nsabench site docs/results/archive --out results/site

# Compile every kernel for other GPUs and other Tritons, with no GPU. `just preflight --help`
preflight *arguments: install
    .venv/bin/nsabench preflight "$@"

# It asks a daemon, and needs neither torch nor what tests need.

# Build the image of a combo: `just image torch2.11.0-cu130`, `nsabench images list` shows them
image *arguments:
    {{ pip }} -e '.[images]'
    .venv/bin/nsabench images build "$@"
