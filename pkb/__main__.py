"""``python -m pkb``: the command line without installation."""

from pkb.cli import main

main()
