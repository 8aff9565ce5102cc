#!/usr/bin/env bash
# Seed 000: run the memory pattern test with every device as coordinator, with `ttmesh monitor -a` in another terminal.
set -euo pipefail
cd "$(dirname "$0")"

for device_id in {0..7}; do
    echo "=========================================="
    echo "Testing with Device $device_id as coordinator"
    echo "=========================================="
    TT_COORDINATOR_DEVICE_ID=$device_id python -m pytest -p ttmesh.testing.plugin -p no:cacheprovider \
        test_custom_coordinator.py::test_coordinator_memory_pattern -v -s
done

echo "All coordinator tests complete!"
