"""The machine underneath: environment variables, processes, faults on demand, marks of time, the collector of garbage."""
