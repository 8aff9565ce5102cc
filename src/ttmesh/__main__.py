"""`python -m ttmesh` is the `ttmesh` command."""

from __future__ import annotations

import sys

from ttmesh.cli import main

sys.exit(main())
