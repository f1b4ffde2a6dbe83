"""Compare what the README's first command printed (standard input) with what the README says."""

import re
import sys
from pathlib import Path

block = re.search(r"```text\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), flags=re.S).group(1).strip()
sys.exit(0 if block in sys.stdin.read() else f"not what the README says:\n{block}")
