"""pytest -p ttmesh.testing.as_ttnn: a test suite written for TT-NN runs on ttmesh, conftest.py and all."""

from __future__ import annotations

from ttmesh import dropin
from ttmesh.testing import stand_ins

dropin.install(force=True)
stand_ins.install()
