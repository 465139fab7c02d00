#!/bin/sh
# Installs SGLang for a CPU and writes the tiny model, each once: setup.sh PYTHON ENVIRONMENT MODEL LOCK
# Both folders lie outside any checkout, so that another clone finds them; what was interrupted is made anew.
set -eu
python=$1 env=$2 model=$3 lock=$4
here=$(dirname "$0")
mkdir -p "$(dirname "$env")"
if command -v flock >/dev/null; then
    exec 9>"$env.lock"
    flock 9 # another clone may be at it
fi
if [ ! -e "$env/.whole" ]; then
    echo "installing SGLang for a CPU into $env: once, about 3 GB, one to five minutes" >&2
    rm -rf "$env"
    "$python" -m venv "$env"
    install() { "$env/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps "$@"; }
    install "$(grep '^torch==' "$lock")"
    version=$("$env/bin/python" -m pip --disable-pip-version-check list --format=freeze 2>/dev/null | grep '^torch==')
    cuda=$(sed -n "s/^cuda.*= '\(.*\)'/\1/p" "$env"/lib/python*/site-packages/torch/version.py)
    if [ -n "$cuda" ]; then
        echo "pip has found a build of $version for CUDA $cuda: on Linux the package index has no other. Let it find PyTorch's own index of CPU builds, with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, and run make setup-sglang again" >&2
        exit 1
    fi
    install -r "$lock"
    touch "$env/.whole"
fi
if [ ! -e "$model/config.json" ]; then
    echo "writing a tiny model with random weights into $model" >&2
    PYTHONPATH="$here" HF_HUB_OFFLINE=1 "$env/bin/python" "$here/model.py" "$model" >/dev/null 2>"$env.log" || { cat "$env.log" >&2; exit 1; }
fi
