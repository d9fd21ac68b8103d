"""Sockets and threads around the roles: what an application, Spark and the CLI use."""
