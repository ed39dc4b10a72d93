"""`python -m kit` is the command `kit`."""

from kit.cli import main

if __name__ == "__main__":
    main()
