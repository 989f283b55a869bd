"""`python -m forge_tui` is `forge-tui`."""

import sys

from forge_tui.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
