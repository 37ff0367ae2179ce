#!/usr/bin/env bash
# Runs inside Colab's image: installing floral-lite may add packages and must change none; then the chapters.
set -euo pipefail
versions() { python3 -m pip list --format=freeze --exclude floral-lite | sort; }

before=$(versions)
# as a reader does, from a repository: chapters that draw stored results clone it
git config --global --add safe.directory "$PWD"
python3 -m pip install --quiet "git+file://$PWD"
moved=$(comm -23 <(echo "$before") <(versions))
if [ -n "$moved" ]; then
  echo "Installing floral-lite moved what Colab has:" "$moved" >&2
  exit 1
fi

python3 -m pip install --quiet nbclient nbformat pyyaml
python3 book/_ext/execute.py
