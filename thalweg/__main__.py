"""`python -m thalweg`: the command line."""

from thalweg.server.cli import main

raise SystemExit(main())
