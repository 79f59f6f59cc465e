"""Every option of engine, server and command line, each declared once: `option.py` says how."""
