"""`python -m wayfare` is the console command `wayfare`."""

import sys

from wayfare.cli.main import main

sys.exit(main())
