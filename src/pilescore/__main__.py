"""`python -m pilescore` is the command `pilescore`."""

import sys

from .cli import main

sys.exit(main())
