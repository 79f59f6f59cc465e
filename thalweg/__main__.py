"""`python -m thalweg`: the command line."""

from thalweg.cli import main

raise SystemExit(main())
