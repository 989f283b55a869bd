"""`python -m forge_tui` is `forge-tui`."""

from forge_tui.cli.main import main

if __name__ == "__main__":
    main()
