"""Helpers that tests share; tests/README.md lists them. Test modules import `support.<module>`."""
