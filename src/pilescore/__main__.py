"""`python -m pilescore` runs the command `pilescore`."""

import sys

from .cli import main

sys.exit(main())
