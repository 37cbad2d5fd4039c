"""A processing script as users write them: with its own paths and an own failure message."""

import json
import os
import sys
from pathlib import Path

ml_root = Path(os.environ.get("SMLAUNCH_ML_ROOT", "/opt/ml"))
host = json.loads((ml_root / "config" / "resourceconfig.json").read_text())["current_host"]
names = sorted(path.name for path in (ml_root / "processing" / "input" / "data").iterdir())
print(f"{host} cleans {len(names)} files", *sys.argv[1:])
(ml_root / "output" / "message").write_text(f"{len(names)} files;")
if "fail" in sys.argv:
    sys.exit(3)
for name in names:
    (ml_root / "processing" / "out" / name).write_text(host)
